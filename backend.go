package lock

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// DefaultTTL is how long a service keeps a lease that is not renewed, where
// nothing else is said.
const DefaultTTL = 15 * time.Second

// minPoll keeps a waiter from spinning.
const minPoll = time.Millisecond

// callBound is how long a service may take to answer anything, whatever the TTL.
const callBound = 10 * time.Second

// closeBound is how long Close waits for what runs in the background.
const closeBound = 3 * time.Second

// Options configures a Backend. The zero value and nil mean the defaults.
type Options struct {
	// TTL is how long the service keeps a lease that is not renewed: the time
	// for which a crashed holder blocks others. Default 15 s.
	TTL time.Duration
	// Note tells people who see the lock held what it is for; host, process
	// and time are added by themselves. At most 256 bytes of plain text.
	Note string
	// Poll is the longest time between two looks at a lock that is waited
	// for. Default 1 s where the service wakes waiters, 100 ms elsewhere.
	Poll time.Duration
	// TokenBase is added to every token. Raise it when data moves to a
	// backend whose tokens are lower than those already seen.
	TokenBase Token
	// Trace is told what happens.
	Trace *Trace
}

func (o Options) withDefaults(d drivers.Driver) (Options, error) {
	o.TTL = cmp.Or(o.TTL, DefaultTTL)
	if o.Poll == 0 {
		o.Poll = 100 * time.Millisecond
		if d != nil && d.Guarantees().Has(Prompt) {
			o.Poll = time.Second
		}
	}
	if err := drivers.CheckTTL(o.TTL, 1, drivers.MaxTTL); err != nil {
		return o, err
	}
	if o.Poll < minPoll {
		return o, &ConfigError{Key: "lock_poll", Value: o.Poll.String(), Problem: "is too short", Fix: "use at least 1ms"}
	}
	if o.TokenBase < 0 {
		return o, &ConfigError{Key: "lock_token_base", Problem: "is negative", Fix: "use 0 or more"}
	}
	return o, checkNote(o.Note)
}

// releaseBound is how long the service is given to hear of a release.
func (o Options) releaseBound(ttl time.Duration) time.Duration {
	return min(ttl/3, 2*time.Second)
}

// LockOptions configures one lock; nil and zero fields mean the backend's.
type LockOptions struct {
	TTL  time.Duration
	Note string
}

// A Backend takes locks at one service, through one driver. It may be used from
// many goroutines.
type Backend struct {
	driver drivers.Driver
	opts   Options
	scheme string
	clock  *clock
	keeper *keeper
	rooms  rooms
	teller teller

	closing context.Context // ended by Close: waits end with ErrClosed
	close   context.CancelFunc
	work    context.Context // ended by Close when its bound is over
	stop    context.CancelFunc

	mu      sync.Mutex
	closed  bool              // no attempt may begin
	drained bool              // and nothing is held: work begins only within other work
	leases  map[string]*lease // by owner, those that are held
	running sync.WaitGroup

	closeOnce sync.Once
	closeErr  error
}

// Open opens the backend that the URL names and makes sure that it answers and
// makes all the promises asked for:
//
//	lock.Open(ctx, "redis://127.0.0.1:6379")
//	lock.Open(ctx, "etcd://10.0.0.1:2379,10.0.0.2:2379?lock_ttl=10s", lock.Fencing)
//
// Settings for every backend: lock_ttl, lock_note, lock_poll, lock_token_base
// (see [Options]), lock_prefix, and lock_need, which adds to need. The driver's
// package tells of its own ones. An unknown or doubled key is an error.
//
// Errors: *ConfigError (what to change), *UnmetError (a promise that is not
// made, and why), ErrUnavailable (the service does not answer). None shows a
// password. ctx bounds the opening only.
func Open(ctx context.Context, rawURL string, need ...Guarantee) (*Backend, error) {
	return Config{URL: rawURL}.open(ctx, need)
}

// New makes a backend of a driver, which Close will close. The options are
// checked; what the driver promises is asked by Guarantees.
func New(d drivers.Driver, opts *Options) (*Backend, error) {
	return newBackend(d, opts, "driver")
}

func newBackend(d drivers.Driver, opts *Options, scheme string) (*Backend, error) {
	if d == nil {
		return nil, &Error{Op: "open", Err: &ConfigError{Key: "driver", Problem: "is nil", Fix: "make one first, or use Open"}}
	}
	o, err := cmp.Or(opts, &Options{}).withDefaults(d)
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	b := &Backend{driver: d, opts: o, scheme: scheme, clock: newClock(), leases: map[string]*lease{}}
	b.rooms.names = map[string]*room{}
	b.teller.trace = o.Trace
	b.closing, b.close = context.WithCancel(context.Background())
	b.work, b.stop = context.WithCancel(context.Background())
	b.keeper = newKeeper(b.clock, b.work.Done())
	b.running.Add(1) // until Close, so that work may begin in the meantime
	b.watch()
	return b, nil
}

// Lock is the lock of that name. It sends nothing. A bad name or option is the
// error of its Acquire, so that Lock can stand inside a call; FencedLock, which
// may be refused in any case, tells it at once.
func (b *Backend) Lock(name string, opts *LockOptions) Lock {
	return handle[Lease]{b.newSpec(name, opts, false)}
}

// FencedLock is the lock of that name, with tokens. It is refused with an
// *UnmetError, before anything is sent, where Fencing is not promised.
func (b *Backend) FencedLock(name string, opts *LockOptions) (FencedLock, error) {
	s := b.newSpec(name, opts, true)
	if s.err != nil {
		return nil, b.failed("fenced lock", name, s.err)
	}
	if !b.Guarantees().Has(Fencing) {
		return nil, b.failed("fenced lock", name, b.noFencing())
	}
	return handle[Fenced]{s}, nil
}

func (b *Backend) noFencing() error {
	return &UnmetError{Scheme: b.scheme, Want: Fencing, Have: b.Guarantees(), Why: []string{"Backend.Check tells why"}}
}

// Guarantees tells what the backend promises.
func (b *Backend) Guarantees() Guarantee { return b.driver.Guarantees() }

// Driver is the driver that the backend was made of.
func (b *Backend) Driver() drivers.Driver { return b.driver }

// Check reads the live service and reports each promise, with the reason for
// those that are not made.
func (b *Backend) Check(ctx context.Context) (Report, error) {
	if c, ok := b.driver.(drivers.Checker); ok {
		bounded, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		r, err := c.Check(bounded)
		return r, b.failed("check", "", outlived(ctx, bounded, err))
	}
	r := Report{Product: b.scheme}
	for _, g := range drivers.Guarantees {
		p := drivers.Promise{Guarantee: g, Made: b.Guarantees().Has(g)}
		if !p.Made {
			p.Why = "the driver does not promise it"
		}
		r.Promises = append(r.Promises, p)
	}
	return r, nil
}

// unmet returns an *UnmetError if a promise of want is not made.
func (b *Backend) unmet(ctx context.Context, want Guarantee) error {
	have := b.Guarantees()
	if have.Has(want) {
		return nil
	}
	e := &UnmetError{Scheme: b.scheme, Want: want, Have: have}
	report, err := b.Check(ctx)
	if err != nil {
		return e
	}
	for _, p := range report.Promises {
		if missing := want &^ have; missing.Has(p.Guarantee) {
			e.Why = append(e.Why, p.Why)
		}
	}
	return e
}

// Close releases the leases that are still held, ends waits with ErrClosed,
// waits a few seconds at most for what runs in the background, and closes the
// driver.
func (b *Backend) Close() error {
	b.closeOnce.Do(func() { b.closeErr = b.shut() })
	return b.closeErr
}

func (b *Backend) shut() error {
	b.close()
	var released sync.WaitGroup
	for _, l := range b.refuseMore() {
		released.Go(func() { _ = l.Release(context.Background()) })
	}
	released.Wait()
	b.drain()
	b.waitForWork()
	b.stop()
	return b.failed("close", "", b.driver.Close())
}

// refuseMore lets no attempt begin any more, and returns the leases held.
func (b *Backend) refuseMore() []*lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return slices.Collect(maps.Values(b.leases))
}

// drain gives up the count that New began.
func (b *Backend) drain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drained = true
	b.running.Done()
}

// beginWork counts what a caller has begun, so that Close waits for it; false
// when Close has nothing left to wait for.
func (b *Backend) beginWork() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.drained {
		return false
	}
	b.running.Add(1)
	return true
}

// waitForWork waits for attempts and reclaims, within a bound.
func (b *Backend) waitForWork() {
	done := make(chan struct{})
	go func() {
		b.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeBound):
	}
}

// beginAttempt counts an attempt, or refuses it after Close.
func (b *Backend) beginAttempt() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.running.Add(1)
	return true
}

// leaseBegan counts a lease among those that are held; false after Close.
func (b *Backend) leaseBegan(l *lease) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.leases[l.grant.Owner] = l
	return true
}

// leaseGone takes a lease off that count.
func (b *Backend) leaseGone(l *lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.leases, l.grant.Owner)
}

func (b *Backend) nudge(name string) { b.rooms.nudgeName(name) }

// watch lets a driver that learns of lost grants end their leases.
func (b *Backend) watch() {
	w, ok := b.driver.(drivers.Watcher)
	if !ok {
		return
	}
	b.running.Go(func() {
		// What Watch returns needs no attention: leases end by the clock.
		_ = w.Watch(b.closing, func(owner string, err error) {
			b.mu.Lock()
			l := b.leases[owner]
			b.mu.Unlock()
			if l != nil && errors.Is(err, ErrLost) {
				l.lose(err)
			}
		})
	})
}

// failed wraps err with what was tried; nil stays nil.
func (b *Backend) failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if _, already := err.(*Error); already { //nolint:errorlint // only the outermost matters
		return err
	}
	return &Error{Op: op, Name: name, Err: err}
}
