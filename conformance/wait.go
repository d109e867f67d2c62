package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkit/lock/drivers"
)

var waitChecks = []Check{
	{ID: "basic/wait-release", Promise: "basic", run: waitRelease,
		Rule: "A waiter is granted the name after its release and not before"},
	{ID: "basic/wait-free", Promise: "basic", run: waitFree,
		Rule: "A waiter is granted a free name at once"},
	{ID: "basic/wait-expiry", Promise: "basic", run: waitExpiry,
		Rule: "A waiter is granted the name after its holder's grant has ended by itself and not before"},
	{ID: "basic/wait-cancelled", Promise: "basic", run: waitCancelled,
		Rule: "A cancelled waiter returns soon with an error that matches the context's, and the name is free after the holder's release"},
	{ID: "basic/wait-cancelled-next", Promise: "basic", run: waitCancelledNext,
		Rule: "When a waiter is cancelled the one behind it is served"},
}

var fairChecks = []Check{
	{ID: "fair/order", Promise: "fair", run: fairOrder,
		Rule: "Waits are served in the order in which they reached the service"},
}

var promptChecks = []Check{
	{ID: "prompt/wake", Promise: "prompt", run: promptWake,
		Rule: "A waiter that need not look for an hour is woken by another client's release"},
}

// waiter returns the client's Waiter.
func (e *env) waiter(d drivers.Driver) (drivers.Waiter, error) {
	w, ok := d.(drivers.Waiter)
	if !ok {
		return nil, &absent{e.Name + " has no drivers.Waiter"}
	}
	return w, nil
}

// once makes an attempt, or a wait, as package lock does: a grant of unknown
// age is confirmed by one renewal before anyone relies on it.
func (e *env) once(ctx context.Context, d drivers.Driver, acquire func(context.Context, drivers.Request) (drivers.Grant, error), r drivers.Request) (*hold, error) {
	waited := false
	h, err := e.send(ctx, d, func(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
		g, err := acquire(ctx, r)
		waited = g.Since.IsZero()
		return g, err
	}, r)
	if err == nil && waited {
		return h, h.confirm(ctx)
	}
	return h, err
}

func (h *hold) confirm(ctx context.Context) error {
	sent := time.Now()
	ttl, err := h.d.Renew(ctx, h.g)
	if err != nil {
		h.e.reclaim(ctx, h.d, drivers.Request{Name: h.g.Name, Owner: h.g.Owner})
		return unless(fmt.Errorf("Renew of a grant that was just pushed: %w", err))
	}
	h.ttl, h.from, h.told = ttl, sent, time.Now()
	return nil
}

// wait waits until a new owner is granted the name. A *HeldError from a Waiter
// says: look again later.
func (e *env) wait(ctx context.Context, d drivers.Driver, name string, poll time.Duration) (*hold, error) {
	w, err := e.waiter(d)
	if err != nil {
		return nil, err
	}
	for {
		r := e.request(name, e.longTTL)
		r.Poll = poll
		h, err := e.once(ctx, d, w.Acquire, r)
		if !isHeld(err) || ctx.Err() != nil {
			return h, err
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// A queued is a wait that runs.
type queued struct {
	cancel context.CancelFunc
	done   chan struct{}
	h      *hold
	err    error
}

// queue begins a wait and gives it time to reach the service.
func (e *env) queue(ctx context.Context, d drivers.Driver, name string, poll, settle time.Duration) *queued {
	return e.queueThen(ctx, d, name, poll, settle, func(*hold) error { return nil })
}

// queueThen is queue with something to do as soon as the name is granted.
func (e *env) queueThen(ctx context.Context, d drivers.Driver, name string, poll, settle time.Duration, then func(*hold) error) *queued {
	waiting, cancel := context.WithCancel(ctx)
	q := &queued{cancel: cancel, done: make(chan struct{})}
	e.atEnd(func(ctx context.Context) { q.cancel(); q.join(ctx) })
	go func() {
		defer close(q.done)
		q.err = protect(func() (err error) {
			if q.h, err = e.wait(waiting, d, name, poll); err != nil {
				return err
			}
			return then(q.h)
		})
	}()
	pause(ctx, settle)
	return q
}

func (q *queued) join(ctx context.Context) {
	select {
	case <-q.done:
	case <-ctx.Done():
	}
}

// stillWaits returns an error if the wait is over.
func (q *queued) stillWaits(holder *hold) error {
	select {
	case <-q.done:
	default:
		return nil
	}
	if q.err != nil {
		return fmt.Errorf("Acquire: %w", q.err)
	}
	if q.h.told.Before(holder.validUntil()) {
		return errors.New("the waiter was granted the name while it was held")
	}
	return tooSlow("the holder's own time was over")
}

// served waits for the grant. The bounds are far ones; a nearer one, where the
// service keeps no long TTL, is tried again before it counts.
func (q *queued) served(ctx context.Context, bound time.Duration) (*hold, error) {
	select {
	case <-q.done:
		if q.err != nil {
			return nil, fmt.Errorf("Acquire: %w", q.err)
		}
		return q.h, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(bound):
		err := fmt.Errorf("the waiter was not served within %v", bound.Round(time.Millisecond))
		if bound < 3*time.Second {
			return nil, unless(err)
		}
		return nil, err
	}
}

// soon is a far bound for being served where nothing stands in the way: within
// a poll of a second or two, and before a left-over of the holder would expire.
func (h *hold) soon() time.Duration {
	return max(min(5*time.Second, time.Until(h.validUntil())), time.Second)
}

const settle = 50 * time.Millisecond

func waitRelease(ctx context.Context, e *env) error {
	for _, d := range []drivers.Driver{e.b, e.a} { // another client, and the holder's own
		if _, err := e.waiter(d); err != nil {
			return err
		}
		h, err := e.take(ctx)
		if err != nil {
			return err
		}
		q := e.queue(ctx, d, h.g.Name, 0, 2*settle)
		if err := q.stillWaits(h); err != nil {
			return err
		}
		if err := h.release(ctx); err != nil {
			return err
		}
		next, err := q.served(ctx, h.soon())
		if err != nil {
			return err
		}
		if err := next.stands(ctx, e.c); err != nil {
			return err
		}
	}
	return nil
}

func waitFree(ctx context.Context, e *env) error {
	if _, err := e.waiter(e.a); err != nil {
		return err
	}
	h, err := e.queue(ctx, e.a, e.name(), time.Hour, 0).served(ctx, 5*time.Second)
	if err != nil {
		return err
	}
	return h.stands(ctx, e.b)
}

func waitExpiry(ctx context.Context, e *env) error {
	if _, err := e.waiter(e.b); err != nil {
		return err
	}
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	q := e.queue(ctx, e.b, h.g.Name, 0, 0)
	undo, err := h.silence()
	if err != nil {
		return err
	}
	defer undo()
	pause(ctx, time.Until(h.validUntil())-settle)
	if err := q.stillWaits(h); err != nil {
		return err
	}
	next, err := q.served(ctx, time.Until(h.mustEndBy())+3*time.Second)
	if err != nil {
		return err
	}
	if early := h.validUntil().Sub(next.told); early > 0 {
		return fmt.Errorf("the waiter was granted it %v before the holder's time was over", early)
	}
	return next.stands(ctx, e.c)
}

// leaves cancels the wait and sees it return.
func (q *queued) leaves() error {
	q.cancel()
	select {
	case <-q.done:
	case <-time.After(5 * time.Second):
		return errors.New("the cancelled waiter had not returned after 5s")
	}
	if !errors.Is(q.err, context.Canceled) {
		return fmt.Errorf("the cancelled waiter returned %w", orNil(q.err))
	}
	return nil
}

func waitCancelled(ctx context.Context, e *env) error {
	if _, err := e.waiter(e.b); err != nil {
		return err
	}
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	q := e.queue(ctx, e.b, h.g.Name, time.Hour, 2*settle)
	if err := q.stillWaits(h); err != nil {
		return err
	}
	if err := q.leaves(); err != nil {
		return err
	}
	if err := h.refuses(ctx, e.c); err != nil {
		return err
	}
	return h.releasedTo(ctx, e.c)
}

func waitCancelledNext(ctx context.Context, e *env) error {
	if _, err := e.waiter(e.b); err != nil {
		return err
	}
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	gone := e.queue(ctx, e.b, h.g.Name, 0, 2*settle)
	next := e.queue(ctx, e.c, h.g.Name, 0, 2*settle)
	for _, q := range []*queued{gone, next} {
		if err := q.stillWaits(h); err != nil {
			return err
		}
	}
	if err := gone.leaves(); err != nil {
		return err
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	served, err := next.served(ctx, h.soon())
	if err != nil {
		return err
	}
	return served.stands(ctx, e.a)
}

// fairOrder lets waiters queue one after another, far enough apart that each
// has reached the service before the next one starts. Nobody can see whether
// it has, so an order that is wrong is tried again with more distance.
func fairOrder(ctx context.Context, e *env) error {
	const waiters = 6
	distance := settle * e.scale
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	if _, err := e.waiter(e.a); err != nil {
		return errors.New("there is no drivers.Waiter that could be fair")
	}
	var all []*queued
	for i := range waiters {
		passOn := func(h *hold) error { return h.release(ctx) }
		all = append(all, e.queueThen(ctx, []drivers.Driver{e.b, e.c, e.a}[i%3], h.g.Name, time.Hour, distance, passOn))
	}
	for _, q := range all {
		if err := q.stillWaits(h); err != nil {
			return err
		}
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	for _, q := range all {
		if _, err := q.served(ctx, 10*time.Second); err != nil {
			return err
		}
	}
	if order := servedOrder(all); !slices.IsSorted(order) {
		return unless(fmt.Errorf("%d waiters that came %v apart were served in the order %v", waiters, distance, order))
	}
	return nil
}

// servedOrder lists the waiters by the time at which each was told. Each
// released only then, so that these times are in the order of the grants.
func servedOrder(all []*queued) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return all[i].h.told.Compare(all[j].h.told) })
	return order
}

// promptWake takes the median of some hand-overs, so that one that a busy
// machine delayed does not count, nor one that a poll made by chance.
func promptWake(ctx context.Context, e *env) error {
	if _, err := e.waiter(e.b); err != nil {
		return errors.New("there is no drivers.Waiter that could be woken")
	}
	const bound = 300 * time.Millisecond
	var took []time.Duration
	for range 5 {
		one, err := e.wakeOne(ctx)
		if err != nil {
			return err
		}
		took = append(took, one)
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median > bound {
		return unless(fmt.Errorf("a release woke the waiter after %v (median of %d)", median, len(took)))
	}
	return nil
}

func (e *env) wakeOne(ctx context.Context) (time.Duration, error) {
	h, err := e.take(ctx)
	if err != nil {
		return 0, err
	}
	q := e.queue(ctx, e.b, h.g.Name, time.Hour, 2*settle)
	if err := q.stillWaits(h); err != nil {
		return 0, err
	}
	released := time.Now()
	if err := h.release(ctx); err != nil {
		return 0, err
	}
	next, err := q.served(ctx, h.soon())
	if err != nil {
		return 0, err
	}
	return next.told.Sub(released), next.release(ctx)
}
