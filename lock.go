// Package lock is one interface to the locks of Redis, Redlock, etcd, ZooKeeper
// and Postgres, chosen by a URL:
//
//	b, err := lock.Open(ctx, "etcd://127.0.0.1:2379")
//	…
//	err = lock.Do(ctx, b.Lock("nightly-report", nil), func(ctx context.Context) error {
//		return report(ctx) // ctx ends if the lock is lost
//	})
//
// A program imports the drivers that it may be pointed at:
//
//	import _ "github.com/lockkit/lock/etcdlease"
//
// # What happens if two holders run at once?
//
// If a second run only wastes work, any backend will do: take a [Lock]. If it
// would corrupt data, ask [Open] for [Fencing], take a [FencedLock], and let the
// store of the data check its [Token] ([DoFenced]).
//
// [Correctness] is Fencing and [Durable]: tokens that outlive a crash of the
// service. In this release no driver of a server claims Durable, since it rests
// on settings of the servers that are not read yet; see docs/choosing.md for what
// to make sure of.
//
// # What is not guaranteed
//
// No lock service can stop a process that was paused past the end of its lease
// and wakes up believing. A [Lease] tells by Err, from the holder's own clock,
// that it has ended, and never later than the service gives the name to someone
// else while the clocks run at the same rate within a margin. Between that look
// and the next write any time may pass; only a store that checks tokens closes
// the gap. See docs/guarantees.md.
package lock

import (
	"context"
	"time"

	"github.com/lockkit/lock/drivers"
)

// An Acquirer takes leases of one name. It has no state, may be shared between
// goroutines, and is not re-entrant: who holds the name and asks again waits for
// himself.
//
// It is the one shape of [Lock] and [FencedLock], so that [Do], [TryDo] and
// wrappers of your own serve both.
type Acquirer[L Lease] interface {
	// Name is the lock's name.
	Name() string
	// TryAcquire makes one attempt. The error matches ErrHeld if someone else
	// holds the name.
	TryAcquire(ctx context.Context) (L, error)
	// Acquire waits until it gets the name, or ctx ends, or the service does
	// not answer for a whole TTL. The end of ctx ends the waiting and never
	// the lease. The error of a wait that ctx ended matches the context's, and
	// tells who held the name when that was last seen.
	Acquire(ctx context.Context) (L, error)
}

// A Lock is a name that at most one holder should have at a time.
type Lock = Acquirer[Lease]

// A FencedLock is a Lock whose leases carry fencing tokens.
type FencedLock = Acquirer[Fenced]

// A Lease is one holding of a name. It is renewed in the background until it is
// released or lost; a lost lease never becomes valid again.
type Lease interface {
	// Name is the lock's name.
	Name() string
	// Done is closed when the lease has been released or lost, at most 250 ms
	// late. Err is exact.
	Done() <-chan struct{}
	// Err is nil while the lease is held, ErrReleased after Release, or an
	// error that matches ErrLost and tells why. It looks at the clock at each
	// call, and that clock goes on while the machine sleeps.
	Err() error
	// Deadline is when the lease ends if no renewal gets through.
	Deadline() time.Time
	// Release ends the lease, and then tells the service, within a bound of
	// its own even if ctx has ended. It returns nil, or an error matching
	// ErrLost if the lease was lost before, or what kept the service from
	// being told; then it is told again in the background, and the name is
	// free at Deadline at the latest. Later calls return the same.
	Release(ctx context.Context) error
}

// Fenced is a Lease with a fencing token.
type Fenced interface {
	Lease
	// Token is higher than that of every earlier grant of the name. Send it
	// with every write to what the lock protects, and have it refused there if
	// a higher one has been seen.
	Token() Token
}

// The types and errors that drivers share.
type (
	// Token is a fencing token; valid ones are positive.
	Token = drivers.Token
	// Guarantee is a set of promises.
	Guarantee = drivers.Guarantee
	// Holder says who holds a name.
	Holder = drivers.Holder
	// Report says what a backend found on its live servers.
	Report = drivers.Report
	// HeldError says who holds the name: Holder (Host, PID, Note, Since, You,
	// Token) and Remaining. It matches ErrHeld. Get at it by errors.As.
	HeldError = drivers.HeldError
	// LostError says why a lease ended: Reason, and Err, what led to it. It
	// matches ErrLost.
	LostError = drivers.LostError
	// UnmetError says which promises a backend does not make: Scheme, Want,
	// Have, and Why, a line for each.
	UnmetError = drivers.UnmetError
	// ConfigError says what is wrong with a setting and how to mend it: Key,
	// Value, Problem, Fix.
	ConfigError = drivers.ConfigError
	// Error wraps an error with the operation (Op) and the lock's name.
	Error = drivers.Error
)

// The promises a backend can make. See drivers.Guarantee.
const (
	Fencing     = drivers.Fencing
	Durable     = drivers.Durable
	Fair        = drivers.Fair
	Prompt      = drivers.Prompt
	Correctness = drivers.Correctness
	Efficiency  = drivers.Efficiency
)

// The errors to match with errors.Is.
var (
	ErrHeld        = drivers.ErrHeld        // someone else holds the name: *HeldError
	ErrNotHeld     = drivers.ErrNotHeld     // nobody holds it (Inspect)
	ErrNoQuorum    = drivers.ErrNoQuorum    // too few nodes agreed (redlock)
	ErrLost        = drivers.ErrLost        // the lease ended before it was released: *LostError
	ErrReleased    = drivers.ErrReleased    // the lease was released
	ErrStale       = drivers.ErrStale       // a resource refused an old token
	ErrUnavailable = drivers.ErrUnavailable // the service could not be reached; it may pass
	ErrClosed      = drivers.ErrClosed      // the backend was closed
)
