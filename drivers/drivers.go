// Package drivers is the contract between package lock and the services that
// keep locks. Whoever adds a backend implements [Driver], registers an
// [Opener] for its URL scheme, and runs the conformance suite against it; see
// docs/writing-a-driver.md.
//
// A driver makes one attempt and tells the truth about it. Waiting, retrying,
// renewing, deciding that a lease is lost, and cleaning up after a request
// whose outcome is unknown are done by package lock, once for all drivers.
//
// The package needs the standard library only.
package drivers

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// A Token is a fencing token: a number that rises with every grant of a name,
// so that a store can refuse the writes of an earlier holder. Valid tokens are
// positive; zero means "no token".
type Token int64

// A Request asks for one grant.
type Request struct {
	// Name is the lock, any string that [CheckName] accepts. Distinct names
	// must never block each other: map them to the service with [EscapeName]
	// or another injective codec.
	Name string

	// Owner identifies this one attempt. It is random, printable ASCII
	// without spaces or punctuation, at most 64 bytes, and package lock never
	// sends it again in another request to acquire.
	Owner string

	// TTL is how long the service should keep the grant if it is not
	// renewed. A driver may round it up to what the service can keep and says
	// so in Grant.TTL; it never rounds down: it refuses with a *ConfigError.
	TTL time.Duration

	// Note describes the holder to people. It is opaque to the driver, valid
	// UTF-8 without control characters, at most 512 bytes; the driver stores
	// it and gives it back in Holder.Note.
	Note string

	// Fenced says that the caller needs a token. A driver whose token costs
	// extra may leave Grant.Token zero when it is false.
	Fenced bool

	// Poll bounds how long a Waiter may rely on being told: it looks at the
	// service at least this often, whatever was pushed. Zero means one second.
	Poll time.Duration
}

// A Grant is what the service gave.
type Grant struct {
	Name, Owner string

	// Token is positive where the driver promises Fencing and the request
	// asked for it.
	Token Token

	// TTL is what the service really keeps, counted from Since; positive.
	TTL time.Duration

	// Margin is taken off TTL by the holder. Zero means [Margin](TTL); a
	// service that may forget a holder early asks for more.
	Margin time.Duration

	// Since is the moment from which the holder must count TTL: when the last
	// exchange that proved the grant (or the lease or session it hangs on)
	// alive was sent, by time.Now. Zero has two meanings. From TryAcquire: the
	// TTL was started by this very call, so its beginning serves. From
	// Acquire: the driver does not know, and package lock confirms the grant
	// by one Renew before anyone sees it.
	Since time.Time

	// State is the driver's own. Release must also work without it, from Name
	// and Owner alone.
	State any
}

// A Driver speaks to one service. Its methods may be called at once from many
// goroutines.
//
// Errors: *HeldError and ErrLost are definite answers. Any other error means
// that the outcome is unknown. Trouble in reaching the service that may pass
// should match [ErrUnavailable]; package lock retries it, and gives up at once
// on everything else. Errors that come of a context match the context's.
type Driver interface {
	// Guarantees tells what the driver promises as it is configured and as it
	// found the live service. It answers from memory.
	Guarantees() Guarantee

	// TryAcquire makes one attempt. It returns a *HeldError if someone else
	// holds the name, and then has left nothing behind at the service. After
	// any other error the outcome is unknown, and Release of a Grant with just
	// Name and Owner will follow. Two errors say that nothing was granted, and
	// are not followed by a Release: a *ConfigError (trying again is of no use)
	// and one that matches ErrNotSent (there was no connection). TryAcquire is not re-entrant: a name held
	// through this same driver is held.
	TryAcquire(ctx context.Context, r Request) (Grant, error)

	// Renew sets the time to live of a grant to g.TTL (it never adds to what is
	// left) and returns what the service now keeps, counted from the beginning
	// of this call: if the call joined an exchange that was sent earlier, the
	// driver takes that off. The error matches ErrLost if the grant is no
	// longer ours, and then nothing was changed: a lost grant is never taken
	// back. A driver may know that by its own clock.
	Renew(ctx context.Context, g Grant) (time.Duration, error)

	// Release ends the grant of g.Name to g.Owner if it is still there, and
	// touches no other grant. It returns nil if it ended one, an error that
	// matches ErrLost if there was none to end, and any other error if the
	// outcome is unknown. It may be repeated.
	//
	// Release also defeats a request to acquire by the same owner that was sent
	// through this driver, is still on its way, and reaches the service after
	// it. A service that orders the requests of a session does so by itself;
	// elsewhere a mark is left there, which works for every client.
	Release(ctx context.Context, g Grant) error

	// Close ends what the driver started and waits for it, within a bound.
	// Grants that are still held end with their TTL at the latest.
	Close() error
}

// A Waiter can wait at the service, in its queue or for its push. Acquire makes
// an attempt and, if it is refused, waits. It returns a grant; or, as TryAcquire
// does, an error. When ctx ends it leaves
// nothing in the queue; if that can't be made sure, a Release of Name and
// Owner, which always follows an error other than *HeldError, must do it.
// A *HeldError tells package lock to look again later.
//
// While Acquire runs the driver keeps its place in the queue alive itself.
type Waiter interface {
	Acquire(ctx context.Context, r Request) (Grant, error)
}

// A Watcher learns from the service that grants ended. Watch is called once
// per driver; it calls lost for each grant that was found to have ended, with
// an error that matches ErrLost, and returns when ctx ends. It must not call
// lost for a grant that was released.
type Watcher interface {
	Watch(ctx context.Context, lost func(owner string, err error)) error
}

// An Inspector can tell who holds a name. Inspect returns an error that
// matches ErrNotHeld if nobody does. It is a hint for people, never a
// permission.
type Inspector interface {
	Inspect(ctx context.Context, name string) (Holder, error)
}

// A Checker reads the live service again and reports what is promised and why
// not.
type Checker interface {
	Check(ctx context.Context) (Report, error)
}

// A Holder says who holds a name, as far as the service tells.
type Holder struct {
	Owner     string        // Request.Owner of the grant; empty if the service does not tell
	Note      string        // Request.Note of the grant
	Token     Token         // zero if the service does not tell
	Remaining time.Duration // until the grant ends if it is not renewed; zero if the service does not tell

	// Package lock reads these out of the note; drivers leave them alone.
	Host  string    // where the holder runs
	PID   int       // its process
	Since time.Time // when it asked, by its own clock
	You   bool      // it is this very process
}

// String describes the holder to people, such as
// "web-1 (pid 4711, nightly report) since 2006-01-02T15:04:05Z, 4.2s left".
func (h Holder) String() string {
	if h == (Holder{}) {
		return "nobody known"
	}
	s := cmp.Or(h.Host, "an unnamed holder")
	switch {
	case h.PID != 0 && h.Note != "":
		s += fmt.Sprintf(" (pid %d, %s)", h.PID, h.Note)
	case h.PID != 0:
		s += fmt.Sprintf(" (pid %d)", h.PID)
	case h.Note != "":
		s += fmt.Sprintf(" (%s)", h.Note)
	}
	if h.You {
		s = "this process: " + s
	}
	if !h.Since.IsZero() {
		s += " since " + h.Since.Format(time.RFC3339)
	}
	if h.Remaining > 0 {
		s += fmt.Sprintf(", %v left", h.Remaining.Round(time.Millisecond))
	}
	return s
}

// A Report says what a driver found on the live service.
type Report struct {
	Product     string    `json:"product"`               // such as "redis"
	Version     string    `json:"version"`               // as the service tells it
	Servers     []string  `json:"servers"`               // addresses, no passwords
	Promises    []Promise `json:"promises"`              // one for each Guarantee
	Assumptions []string  `json:"assumptions,omitempty"` // what a promise rests on and can't be read
	Warnings    []string  `json:"warnings,omitempty"`    // failings that no Guarantee covers
}

// A Promise is one line of a Report.
type Promise struct {
	Guarantee Guarantee `json:"guarantee"`
	Made      bool      `json:"made"`
	Why       string    `json:"why"` // the reason if it is not made: "redis 127.0.0.1:6379: appendfsync is everysec"
}

// Margin is taken off a time to live by its holder for the drift between two
// clocks and the grain of the service's: 1 % and 2 ms.
func Margin(ttl time.Duration) time.Duration {
	return ttl/100 + 2*time.Millisecond
}
