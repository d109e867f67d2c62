package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// minRetry keeps a failing renewal from spinning at the end of a lease.
const minRetry = 5 * time.Millisecond

// A lease is one grant, kept alive. It is the concrete Lease.
type lease struct {
	b     *Backend
	grant drivers.Grant
	token Token // with the token base; zero without one
	done  chan struct{}

	mu       sync.Mutex
	err      error  // nil while held
	deadline moment // when the holder must stop believing
	renewAt  moment
	lastErr  error // of the last renewal; nil if it got through
	renewal  *renewal

	releasing sync.Once
	released  error // what Release returns

	// Kept by the keeper, under its mutex.
	due   moment
	place int
}

// A renewal is one exchange on its way.
type renewal struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

func newLease(b *Backend, g drivers.Grant, token Token, since moment) *lease {
	l := &lease{b: b, grant: g, token: token, done: make(chan struct{}), place: -1}
	l.extend(since, g.TTL)
	return l
}

// A fencedLease is a lease with a token; a plain one does not even have the
// method.
type fencedLease struct{ *lease }

func (l fencedLease) Token() Token { return l.token }

func (l *lease) Name() string          { return l.grant.Name }
func (l *lease) Done() <-chan struct{} { return l.done }

func (l *lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	return l.err
}

func (l *lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.deadline - l.b.clock.now())
}

// extend sets the end of the lease from what the service keeps, and the next
// renewal at a third of it, early by a little at random so that leases taken
// together don't stay together.
func (l *lease) extend(since moment, ttl time.Duration) {
	margin := l.grant.Margin
	if margin == 0 {
		margin = drivers.Margin(ttl)
	}
	l.deadline = since + ttl - margin
	third := max(0, ttl-margin) / 3
	l.renewAt = since + third - rand.N(third/8+1)
}

// start begins to keep the lease. It returns false if it is over already.
func (l *lease) start() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.clock.now() >= l.deadline {
		return false
	}
	l.b.keeper.schedule(l, l.renewAt)
	return true
}

// look does what is due: it ends the lease or sends a renewal.
func (l *lease) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	if l.err != nil {
		return
	}
	if l.renewal == nil && l.b.clock.now() >= l.renewAt {
		l.renew()
	}
	next := l.deadline
	if l.renewal == nil {
		next = min(next, l.renewAt)
	}
	l.b.keeper.schedule(l, next)
}

// expire ends the lease if its time is over. l.mu is held.
func (l *lease) expire() {
	if l.err != nil || l.b.clock.now() < l.deadline {
		return
	}
	reason := drivers.Expired
	if l.lastErr != nil || l.renewal != nil {
		reason = drivers.Unreachable
	}
	l.end(drivers.Lost(reason, l.lastErr))
	// The service may still keep the grant, as long as its session lives.
	l.b.reclaim(l.grant)
}

// lose ends the lease on the service's word.
func (l *lease) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.end(err)
	}
}

// end is the only way out of being held. l.mu is held.
func (l *lease) end(err error) {
	l.err = err
	close(l.done)
	if l.renewal != nil {
		l.renewal.cancel()
	}
	l.b.keeper.forget(l)
	l.b.leaseGone(l)
	l.b.nudge(l.grant.Name)
	l.b.teller.tell(EndedInfo{Name: l.grant.Name, Owner: l.grant.Owner, Err: err})
}

// renew sends one renewal in the background. Nothing waits for it: the end of
// the lease comes whether it answers or not. l.mu is held.
func (l *lease) renew() {
	sent := l.b.clock.now()
	// An attempt that hangs leaves time for others.
	ctx, cancel := context.WithTimeout(context.Background(), max((l.deadline-sent)/3, minRetry))
	r := &renewal{cancel: cancel, ended: make(chan struct{})}
	l.renewal = r
	go func() {
		defer close(r.ended)
		defer cancel()
		ttl, err := l.b.driver.Renew(ctx, l.grant)
		l.renewed(sent, ttl, err)
	}()
}

func (l *lease) renewed(sent moment, ttl time.Duration, err error) {
	now := l.b.clock.now()
	left, held := l.apply(sent, now, ttl, err)
	if held {
		l.b.opts.Trace.renewed(RenewedInfo{Name: l.grant.Name, Owner: l.grant.Owner, Err: err, Took: now - sent, Left: left})
	}
}

// apply takes in the result of a renewal. A result that comes after the end
// changes nothing.
func (l *lease) apply(sent, now moment, ttl time.Duration, err error) (left time.Duration, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	l.renewal = nil
	if l.err != nil {
		return 0, false
	}
	switch {
	case errors.Is(err, ErrLost):
		l.end(err)
		return 0, true
	case err != nil:
		l.lastErr = err
		l.renewAt = now + max((l.deadline-now)/6, minRetry)
	case ttl <= 0:
		l.lastErr = errors.New("driver renewed for no time")
		l.renewAt = now + max((l.deadline-now)/6, minRetry)
	default:
		l.lastErr = nil
		l.extend(sent, ttl)
	}
	l.b.keeper.schedule(l, min(l.renewAt, l.deadline))
	return l.deadline - now, true
}

func (l *lease) Release(ctx context.Context) error {
	l.releasing.Do(func() { l.released = l.release(ctx) })
	return l.released
}

func (l *lease) release(ctx context.Context) error {
	if l.b.beginWork() {
		defer l.b.running.Done()
	}
	r, lost := l.endByRelease()
	if lost != nil {
		return l.b.failed("release", l.grant.Name, lost)
	}
	defer l.b.nudge(l.grant.Name)
	bound := l.b.opts.releaseBound(l.grant.TTL)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	// A renewal on its way must not reach the service behind the release.
	if r != nil {
		select {
		case <-r.ended:
		case <-ctx.Done():
		}
	}
	err := outlived(context.Background(), ctx, l.b.driver.Release(ctx, l.grant))
	if err != nil && !errors.Is(err, ErrLost) {
		l.b.reclaim(l.grant)
	}
	return l.b.failed("release", l.grant.Name, err)
}

// endByRelease ends the lease locally. It returns the renewal that was on its
// way, or how the lease was lost before.
func (l *lease) endByRelease() (*renewal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	if l.err != nil {
		return nil, l.err
	}
	r := l.renewal
	l.end(ErrReleased)
	return r, nil
}
