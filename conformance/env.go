package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkit/lock/drivers"
)

// An env is what one attempt of a check works with.
type env struct {
	*suite
	id      string        // of the check
	ttl     time.Duration // for grants that shall expire
	slack   time.Duration // how much later they may
	scale   time.Duration // 1, and twice as much at each further attempt
	a, b, c drivers.Driver

	mu       sync.Mutex
	cleanups []func(context.Context)
}

var names atomic.Int64

// name makes a plain name that is used nowhere else: what a driver makes of
// strange bytes is the matter of one check only.
func (e *env) name() string {
	return fmt.Sprintf("%s%s-%d", e.Prefix, strings.ReplaceAll(e.id, "/", "-"), names.Add(1))
}

// request makes a request of a new owner.
func (e *env) request(name string, ttl time.Duration) drivers.Request {
	return drivers.Request{Name: name, Owner: rand.Text(), TTL: ttl, Note: "conformance " + e.id, Fenced: e.promised.Has(drivers.Fencing)}
}

// open opens a client for this check alone.
func (e *env) open(ctx context.Context) (drivers.Driver, error) {
	d, err := openOne(ctx, e.Config)
	if err != nil {
		return nil, fmt.Errorf("Open: %w", err)
	}
	e.atEnd(func(context.Context) { _ = d.Close() })
	return d, nil
}

// atEnd calls f when the attempt is over, in the reverse order of the calls.
func (e *env) atEnd(f func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}

func (e *env) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	e.mu.Lock()
	todo := e.cleanups
	e.cleanups = nil
	e.mu.Unlock()
	for _, f := range slices.Backward(todo) {
		_ = protect(func() error { f(ctx); return nil })
	}
}

// A hold is a grant and what its holder knows of its time.
type hold struct {
	e    *env
	d    drivers.Driver
	g    drivers.Grant
	ttl  time.Duration // what the service keeps since the last renewal
	from time.Time     // the holder counts ttl from here
	told time.Time     // when the last exchange was over: the service began to count before
	over bool          // released
}

// validUntil is when the holder stops to believe in its grant.
func (h *hold) validUntil() time.Time { return h.from.Add(h.ttl - h.margin()) }

func (h *hold) valid() bool { return time.Now().Before(h.validUntil()) }

func (h *hold) token() drivers.Token { return h.g.Token }

func (h *hold) margin() time.Duration {
	if h.g.Margin > 0 {
		return h.g.Margin
	}
	return drivers.Margin(h.ttl)
}

// mustEndBy is when the service must have ended the grant if nothing renews it.
func (h *hold) mustEndBy() time.Time { return h.told.Add(h.ttl + h.e.slack) }

// try makes one attempt of a new owner.
func (e *env) try(ctx context.Context, d drivers.Driver, name string, ttl time.Duration) (*hold, error) {
	return e.send(ctx, d, d.TryAcquire, e.request(name, ttl))
}

// send makes an attempt as package lock does: an error that leaves it open
// what happened is followed by a release, a pushed grant of unknown age by a
// renewal. An attempt that met a split vote is repeated.
func (e *env) send(ctx context.Context, d drivers.Driver, acquire func(context.Context, drivers.Request) (drivers.Grant, error), r drivers.Request) (*hold, error) {
	for n := 0; ; n++ {
		start := time.Now()
		g, err := acquire(ctx, r)
		if err == nil {
			return e.granted(ctx, d, g, r, start)
		}
		if isHeld(err) {
			return nil, err
		}
		e.reclaim(ctx, d, r)
		if !errors.Is(err, drivers.ErrNoQuorum) || n == 20 {
			return nil, err
		}
		pause(ctx, mrand.N(10*time.Millisecond)) //nolint:gosec // not a secret
		r.Owner = rand.Text()
	}
}

func (e *env) granted(ctx context.Context, d drivers.Driver, g drivers.Grant, r drivers.Request, start time.Time) (*hold, error) {
	h := &hold{e: e, d: d, g: g, ttl: g.TTL, from: g.Since, told: time.Now()}
	if g.Name != r.Name || g.Owner != r.Owner {
		e.reclaim(ctx, d, r)
		return nil, fmt.Errorf("asked for %q as %s and got a grant of %q to %s", r.Name, r.Owner, g.Name, g.Owner)
	}
	e.atEnd(func(ctx context.Context) {
		if !h.over {
			_ = d.Release(ctx, h.g)
		}
	})
	if h.from.IsZero() {
		h.from = start
	}
	return h, nil
}

// reclaim makes sure that nothing is left of a request.
func (e *env) reclaim(ctx context.Context, d drivers.Driver, r drivers.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = d.Release(ctx, drivers.Grant{Name: r.Name, Owner: r.Owner})
}

// grab takes a name that must be free.
func (e *env) grab(ctx context.Context, d drivers.Driver, name string, ttl time.Duration) (*hold, error) {
	h, err := e.try(ctx, d, name, ttl)
	if err != nil {
		return nil, fmt.Errorf("TryAcquire of a free name: %w", err)
	}
	return h, nil
}

// take takes a new name through client a, for longer than the check lasts.
func (e *env) take(ctx context.Context) (*hold, error) {
	return e.grab(ctx, e.a, e.name(), e.longTTL)
}

// takeAlone takes a new name for the short TTL through a client of its own,
// which nothing else keeps alive.
func (e *env) takeAlone(ctx context.Context) (*hold, error) {
	d, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	return e.grab(ctx, d, e.name(), e.ttl)
}

// refuses makes sure that the name is refused to other owners through each of
// the clients. Only a grant that came in the holder's time breaks the rule.
func (h *hold) refuses(ctx context.Context, through ...drivers.Driver) error {
	for _, d := range through {
		other, err := h.e.try(ctx, d, h.g.Name, h.e.longTTL)
		if err == nil {
			if other.told.Before(h.validUntil()) {
				return fmt.Errorf("another owner was granted the name %v before the holder's time was over", h.validUntil().Sub(other.told))
			}
			return tooSlow("the holder's own time was over")
		}
		if !isHeld(err) {
			return fmt.Errorf("another owner was refused with %T (%w), which is no *HeldError", err, err)
		}
	}
	return nil
}

// renew renews the grant, which must be in its time.
func (h *hold) renew(ctx context.Context) error {
	until, sent := h.validUntil(), time.Now()
	ttl, err := h.d.Renew(ctx, h.g)
	now := time.Now()
	switch {
	case err != nil && now.After(until):
		return tooSlow("a renewal came after the holder's time")
	case err != nil:
		return fmt.Errorf("Renew of a grant in its time: %w", err)
	case ttl < h.g.TTL:
		return fmt.Errorf("Renew of a grant of %v keeps it only for %v", h.g.TTL, ttl)
	}
	h.ttl, h.from, h.told = ttl, sent, now
	return nil
}

// release ends the grant, which must be in its time.
func (h *hold) release(ctx context.Context) error {
	err := h.d.Release(ctx, h.g)
	if err != nil && !h.valid() {
		return tooSlow("the holder's time was over before its release")
	}
	if err != nil {
		return fmt.Errorf("Release of a grant in its time: %w", err)
	}
	h.over = true
	return nil
}

// goesTo makes sure that the name, which was just freed, is granted to another
// owner before the former holder's time would have been over: freed, and not
// expired.
func (h *hold) goesTo(ctx context.Context, d drivers.Driver) (*hold, error) {
	return h.goesToWithin(ctx, d, 5*time.Millisecond)
}

// goesToWithin is goesTo with the pause between attempts.
func (h *hold) goesToWithin(ctx context.Context, d drivers.Driver, every time.Duration) (*hold, error) {
	limit := h.validUntil()
	if soon := time.Now().Add(5 * time.Second); soon.Before(limit) {
		limit = soon
	}
	for asked := false; ; asked = true {
		if time.Now().After(limit) && asked {
			return nil, errors.New("the name is not free")
		}
		next, err := h.e.try(ctx, d, h.g.Name, h.e.longTTL)
		if err == nil && next.told.After(h.validUntil()) {
			return nil, tooSlow("the name may have become free by expiry")
		}
		if err == nil || !isHeld(err) {
			return next, err
		}
		pause(ctx, every)
	}
}

// releasedTo releases the grant and sees another owner get the name: what was
// refused before was refused because of the grant.
func (h *hold) releasedTo(ctx context.Context, d drivers.Driver) error {
	if err := h.release(ctx); err != nil {
		return err
	}
	_, err := h.isFreeFor(ctx, d)
	return err
}

// isFreeFor sees another owner get the name, and gives it back.
func (h *hold) isFreeFor(ctx context.Context, d drivers.Driver) (*hold, error) {
	next, err := h.goesTo(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("after the release: %w", err)
	}
	return next, next.release(ctx)
}

// silence stops whatever keeps the client's grants alive beside renewals.
func (h *hold) silence() (undo func(), err error) {
	if h.e.Silence == nil {
		return func() {}, nil
	}
	undo, err = h.e.Silence(h.d)
	if err != nil {
		return nil, &unproven{"the client could not be cut off: " + err.Error()}
	}
	undo = sync.OnceFunc(undo)
	h.e.atEnd(func(context.Context) { undo() })
	return undo, nil
}

// expiresTo waits until the grant has ended by itself and another owner has
// the name, and fails if that takes too long.
func (h *hold) expiresTo(ctx context.Context, d drivers.Driver) (*hold, error) {
	undo, err := h.silence()
	if err != nil {
		return nil, err
	}
	defer undo()
	return h.endsFor(ctx, d)
}

// endsFor polls until another owner has the name. That the service is late is
// proved by a refusal of an attempt that began after the limit; that it was
// kept from its work by a busy machine is guessed from gaps between attempts.
func (h *hold) endsFor(ctx context.Context, d drivers.Driver) (*hold, error) {
	var gap time.Duration
	last := time.Now()
	for {
		sent := time.Now()
		next, err := h.e.try(ctx, d, h.g.Name, h.e.longTTL)
		switch late := sent.Sub(h.mustEndBy()); {
		case err == nil || !isHeld(err):
			return next, err
		case late > 0 && gap > h.e.slack/2:
			return nil, tooSlow("polls were up to %v apart", gap)
		case late > 0:
			return nil, fmt.Errorf("it was held %v after its last renewal, with a TTL of %v and a slack of %v", sent.Sub(h.told).Round(time.Millisecond), h.ttl, h.e.slack)
		}
		pause(ctx, h.e.pollEvery())
		gap = max(gap, time.Since(last))
		last = time.Now()
	}
}

func (e *env) pollEvery() time.Duration { return min(e.ttl/30, 50*time.Millisecond) }

// isHeld reports whether err is a refusal in the form that callers rely on.
func isHeld(err error) bool {
	var held *drivers.HeldError
	return errors.As(err, &held)
}

// lost returns an error unless err matches ErrLost.
func lost(what string, err error) error {
	if errors.Is(err, drivers.ErrLost) {
		return nil
	}
	return fmt.Errorf("%s returned %w, which does not match ErrLost", what, orNil(err))
}

// nilOrLost returns an error unless err is nil or matches ErrLost.
func nilOrLost(what string, err error) error {
	if err == nil {
		return nil
	}
	return lost(what, err)
}

var errNil = errors.New("nil")

func orNil(err error) error {
	if err == nil {
		return errNil
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
