package conformance

import (
	"context"
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
	{ID: "basic/contention-crashes", Promise: "basic", run: contentionCrashes,
		Rule: "Under contention with holders that vanish no two owners believe to hold a name at once, and the name comes free again"},
}

// A contest is many workers over one name. Each that holds it adds one to a
// counter, in two steps.
type contest struct {
	*env
	name    string
	ttl     time.Duration
	clients []drivers.Driver
	workers int
	rounds  int           // of each worker
	enough  int           // grants that are wanted in all
	bound   time.Duration // after which workers stop that have rounds left
	crash   int           // one hold in so many is never released; 0: none

	rec      *Recorder
	counter  atomic.Int64
	sections atomic.Int64 // finished while the lease was valid
	spoiled  atomic.Int64 // that outlasted their lease
	refusals atomic.Int64
}

func (e *env) contest(name string) *contest {
	return &contest{
		env: e, name: name, ttl: e.longTTL, clients: []drivers.Driver{e.a, e.b, e.c},
		workers: 9, rounds: 12, enough: 20, bound: 4 * time.Second, rec: NewRecorder(nil),
	}
}

// run lets the workers contend and judges what all contests have in common.
func (c *contest) run(ctx context.Context) error {
	end := time.Now().Add(c.bound)
	err := together(c.workers, func(i int) error { return c.work(ctx, i, end) })
	if err != nil {
		return err
	}
	if v := Overlaps(c.rec.History()); len(v) > 0 {
		return violated(v)
	}
	switch {
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
	d := c.clients[worker%len(c.clients)]
	client := fmt.Sprintf("w%d", worker)
	for round := 0; round < c.rounds && time.Now().Before(end); round++ {
		h, err := c.win(ctx, d, client, worker%2 == 1, end)
		if err != nil || h == nil {
			return err
		}
		c.section(ctx, client, h)
		if c.crash > 0 && mrand.N(c.crash) == 0 { //nolint:gosec // not a secret
			h.over = true
			continue
		}
		if err := c.give(ctx, client, h); err != nil {
			return err
		}
	}
	return nil
}

// win tries until the name is won, or returns nil when time is up.
func (c *contest) win(ctx context.Context, d drivers.Driver, client string, wait bool, end time.Time) (*hold, error) {
	acquire := d.TryAcquire
	if w, ok := d.(drivers.Waiter); ok && wait {
		acquire = w.Acquire
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	backoff := 500 * time.Microsecond
	for {
		h, err := c.attempt(ctx, d, client, acquire)
		switch {
		case err == nil:
			return h, nil
		case time.Now().After(end):
			return nil, nil //nolint:nilnil // not won and not failed
		case !isHeld(err) && !errors.Is(err, drivers.ErrNoQuorum):
			return nil, err
		}
		c.refusals.Add(1)
		pause(ctx, mrand.N(backoff)) //nolint:gosec // not a secret
		backoff = min(2*backoff, 20*time.Millisecond)
	}
}

func (c *contest) attempt(ctx context.Context, d drivers.Driver, client string, acquire func(context.Context, drivers.Request) (drivers.Grant, error)) (*hold, error) {
	r := c.request(c.name, c.ttl)
	event := Event{Op: OpAcquire, Name: c.name, Client: client, Lease: r.Owner, Phase: Invoke}
	c.rec.Record(event)
	start := time.Now()
	h, err := c.once(ctx, d, acquire, r)
	if time.Since(start) > time.Millisecond {
		c.refusals.Add(1) // it had to wait
	}
	switch {
	case err == nil:
		event.Phase, event.Token = OK, h.g.Token
	case isHeld(err):
		event.Phase, event.Note = Fail, err.Error()
	default:
		event.Phase, event.Note = Unknown, err.Error()
	}
	c.rec.Record(event)
	return h, err
}

// section is what the lock is for. The pause makes a second holder meet the
// first.
func (c *contest) section(ctx context.Context, client string, h *hold) {
	c.assert(client, h)
	seen := c.counter.Load()
	pause(ctx, mrand.N(300*time.Microsecond)) //nolint:gosec // not a secret
	c.counter.Store(seen + 1)
	if c.assert(client, h) {
		c.sections.Add(1)
	} else {
		c.spoiled.Add(1)
	}
}

func (c *contest) assert(client string, h *hold) bool {
	return c.rec.Assert(c.name, client, h.g.Owner, h.valid)
}

func (c *contest) give(ctx context.Context, client string, h *hold) error {
	event := Event{Op: OpRelease, Name: c.name, Client: client, Lease: h.g.Owner, Phase: Invoke}
	c.rec.Record(event)
	err := h.release(ctx)
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

func contention(ctx context.Context, e *env) error {
	c := e.contest(e.name())
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

func contentionCrashes(ctx context.Context, e *env) error {
	c, err := e.crashing(ctx)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// crashing is a contest for the short TTL in which holders vanish.
func (e *env) crashing(ctx context.Context) (*contest, error) {
	c := e.contest(e.name())
	c.ttl, c.crash, c.enough, c.bound = e.ttl, 8, 8, 5*e.ttl+2*e.Slack
	for i := range c.clients { // vanished grants must not be kept alive by others
		d, err := e.open(ctx)
		if err != nil {
			return nil, err
		}
		c.clients[i] = d
	}
	return c, nil
}
