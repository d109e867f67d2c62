package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkit/lock/drivers"
)

var contendChecks = []Check{
	{ID: "basic/contention", Promise: "basic", run: contention,
		Rule: "Under contention no two owners hold a name at once and no update made under it is lost"},
	{ID: "basic/contention-crashes", Promise: "basic", run: contentionCrashes, slow: true,
		Rule: "Under contention with holders that vanish no two owners believe to hold a name at once, and the name comes free again"},
}

// A contest is many workers over one name. Each that holds it adds one to a
// counter, in two steps.
type contest struct {
	name    string
	take    func(ctx context.Context, worker int) (holding, error) // one attempt or wait
	workers int
	rounds  int           // of each worker
	enough  int           // grants that are wanted in all
	bound   time.Duration // after which workers stop that have rounds left
	crash   int           // one hold in so many is never released; 0: none
	vanish  func(ctx context.Context, worker int) error

	rec      *Recorder
	counter  atomic.Int64
	sections atomic.Int64 // finished while the lease was valid
	spoiled  atomic.Int64 // that outlasted their lease
	refusals atomic.Int64
	granted  atomic.Int64
	crashed  atomic.Int64
	revived  atomic.Int64 // grants after a crash
}

// A holding is a hold of a driver's grant, or a lease of the engine.
type holding interface {
	valid() bool
	token() drivers.Token
	release(ctx context.Context) error
}

// contest lets the clients contend for the name by the driver's own methods:
// every second worker waits, if the driver can, the others try again.
func (e *env) contest(name string, ttl time.Duration, clients ...drivers.Driver) *contest {
	c := newContest(name)
	c.take = func(ctx context.Context, worker int) (holding, error) {
		d := clients[worker%len(clients)]
		acquire := d.TryAcquire
		if w, ok := d.(drivers.Waiter); ok && worker%2 == 1 {
			acquire = w.Acquire
		}
		return e.once(ctx, d, acquire, e.request(name, ttl))
	}
	return c
}

func newContest(name string) *contest {
	return &contest{name: name, workers: 9, rounds: 12, enough: 20, bound: 4 * time.Second, rec: NewRecorder(nil)}
}

// run lets the workers contend and judges what all contests have in common.
func (c *contest) run(ctx context.Context) error {
	end := time.Now().Add(c.bound)
	err := together(c.workers, func(i int) error { return c.work(ctx, i, end) })
	v := Overlaps(c.rec.History())
	switch {
	case len(v) > 0:
		return violated(v) // says more than the errors that came of it
	case err != nil:
		return err
	case c.crash > 0 && c.crashed.Load() == 0:
		return tooSlow("the name was held %d times in %v and no holder vanished", c.granted.Load(), c.bound)
	case c.crash > 0 && c.revived.Load() == 0:
		return errors.New("nobody was granted the name after a holder had vanished")
	case c.refusals.Load() == 0:
		return tooSlow("no worker ever met another")
	case int(c.sections.Load()) < c.enough:
		return tooSlow("%d workers held the name %d times in %v", c.workers, c.sections.Load(), c.bound)
	}
	return nil
}

func violated(found []Violation) error {
	const most = 3
	var lines []string
	for _, v := range found[:min(most, len(found))] {
		lines = append(lines, v.String())
	}
	if len(found) > most {
		lines = append(lines, fmt.Sprintf("and %d more", len(found)-most))
	}
	return errors.New(strings.Join(lines, "; "))
}

func (c *contest) work(ctx context.Context, worker int, end time.Time) error {
	for round := 0; round < c.rounds && time.Now().Before(end); round++ {
		l, err := c.win(ctx, worker, end)
		if err != nil || l == nil {
			return err
		}
		c.section(ctx, l)
		if err := c.end(ctx, worker, l); err != nil {
			return err
		}
	}
	return nil
}

// end releases a hold, or lets its holder vanish if it is its turn.
func (c *contest) end(ctx context.Context, worker int, l *turn) error {
	if c.crashed.Load() > 0 {
		c.revived.Add(1)
	}
	if n := c.granted.Add(1); c.crash == 0 || n%int64(c.crash) != 0 {
		return c.give(ctx, l)
	}
	c.crashed.Add(1)
	return c.vanish(ctx, worker)
}

// A turn is one grant of a contest with its place in the history.
type turn struct {
	holding
	event Event
}

// win tries until the name is won, or returns nil when time is up.
func (c *contest) win(ctx context.Context, worker int, end time.Time) (*turn, error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	backoff := 500 * time.Microsecond
	for {
		l, err := c.attempt(ctx, worker)
		switch {
		case err == nil:
			return l, nil
		case time.Now().After(end):
			return nil, nil //nolint:nilnil // not won and not failed
		case !mayPass(err):
			return nil, err
		}
		c.refusals.Add(1)
		pause(ctx, mrand.N(backoff)) //nolint:gosec // not a secret
		backoff = min(2*backoff, 20*time.Millisecond)
	}
}

// mayPass reports whether an attempt may go better the next time, as package
// lock sees it. What had no clear answer has been released by then.
func mayPass(err error) bool {
	return isHeld(err) || errors.Is(err, drivers.ErrNoQuorum) || errors.Is(err, drivers.ErrUnavailable)
}

func (c *contest) attempt(ctx context.Context, worker int) (*turn, error) {
	event := Event{Op: OpAcquire, Name: c.name, Client: fmt.Sprintf("w%d", worker), Lease: rand.Text()[:8], Phase: Invoke}
	c.rec.Record(event)
	start := time.Now()
	l, err := c.take(ctx, worker)
	if time.Since(start) > time.Millisecond {
		c.refusals.Add(1) // it had to wait
	}
	switch {
	case err == nil:
		event.Phase, event.Token = OK, l.token()
	case isHeld(err):
		event.Phase, event.Note = Fail, err.Error()
	default:
		event.Phase, event.Note = Unknown, err.Error()
	}
	c.rec.Record(event)
	return &turn{l, event}, err
}

// section is what the lock is for. The pause makes a second holder meet the
// first.
func (c *contest) section(ctx context.Context, l *turn) {
	c.assert(l)
	seen := c.counter.Load()
	pause(ctx, mrand.N(300*time.Microsecond)) //nolint:gosec // not a secret
	c.counter.Store(seen + 1)
	if c.assert(l) {
		c.sections.Add(1)
	} else {
		c.spoiled.Add(1)
	}
}

func (c *contest) assert(l *turn) bool {
	return c.rec.Assert(c.name, l.event.Client, l.event.Lease, l.valid)
}

// give releases. That a lease was lost before is no fault of a contest: it is
// counted where it matters.
func (c *contest) give(ctx context.Context, l *turn) error {
	event := Event{Op: OpRelease, Name: c.name, Client: l.event.Client, Lease: l.event.Lease, Phase: Invoke}
	c.rec.Record(event)
	err := l.release(ctx)
	event.Phase = OK
	if err != nil {
		event.Phase, event.Note = Unknown, err.Error()
	}
	c.rec.Record(event)
	var late *inconclusive
	if errors.As(err, &late) {
		return nil
	}
	return err
}

// noUpdateLost is what exclusion is for.
func (c *contest) noUpdateLost(ctx context.Context) error {
	if err := c.run(ctx); err != nil {
		return err
	}
	if n := c.spoiled.Load(); n > 0 {
		return tooSlow("%d sections outlasted their lease", n)
	}
	if lost := c.sections.Load() - c.counter.Load(); lost > 0 {
		return fmt.Errorf("%d of %d updates were lost", lost, c.sections.Load())
	}
	return nil
}

func contention(ctx context.Context, e *env) error {
	return e.contest(e.name(), e.longTTL, e.a, e.b, e.c).noUpdateLost(ctx)
}

func contentionCrashes(ctx context.Context, e *env) error {
	c, err := e.crashing(ctx)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// crashing is a contest for the short TTL in which holders vanish. It has
// clients of its own, whose grants nothing else keeps alive. Where a session
// would, each worker has its own client, and to vanish is to close it.
func (e *env) crashing(ctx context.Context) (*contest, error) {
	clients := make([]drivers.Driver, 3)
	if e.Silence != nil {
		clients = make([]drivers.Driver, newContest("").workers)
	}
	for i := range clients {
		d, err := e.open(ctx)
		if err != nil {
			return nil, err
		}
		clients[i] = d
	}
	c := e.contest(e.name(), e.ttl, clients...)
	c.crash, c.enough, c.bound = 8, 8, 5*e.ttl+2*e.slack
	c.vanish = func(ctx context.Context, worker int) (err error) {
		if e.Silence != nil {
			_ = clients[worker].Close()
			clients[worker], err = e.open(ctx)
		}
		return err
	}
	return c, nil
}
