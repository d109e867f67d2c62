package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A spec is a lock as it was asked for.
type spec struct {
	b      *Backend
	name   string
	ttl    time.Duration
	note   string
	fenced bool
	err    error // what is wrong with it
}

func (b *Backend) newSpec(name string, opts *LockOptions, fenced bool) *spec {
	s := &spec{b: b, name: name, ttl: b.opts.TTL, note: b.opts.Note, fenced: fenced}
	if opts != nil && opts.TTL != 0 {
		s.ttl = opts.TTL
	}
	if opts != nil && opts.Note != "" {
		s.note = opts.Note
	}
	s.err = s.check()
	return s
}

func (s *spec) check() error {
	if err := drivers.CheckName(s.name); err != nil {
		return err
	}
	if err := drivers.CheckTTL(s.ttl, 1, drivers.MaxTTL); err != nil {
		return err
	}
	return checkNote(s.note)
}

func (s *spec) request() drivers.Request {
	return drivers.Request{
		Name: s.name, Owner: newOwner(), TTL: s.ttl, Note: writeNote(s.note, time.Now()),
		Fenced: s.fenced, Poll: s.b.opts.Poll,
	}
}

// A handle is a spec as a Lock or as a FencedLock.
type handle[L Lease] struct{ s *spec }

func (h handle[L]) Name() string { return h.s.name }

func (h handle[L]) TryAcquire(ctx context.Context) (L, error) {
	return typed[L](h.s.tryAcquire(ctx))
}

func (h handle[L]) Acquire(ctx context.Context) (L, error) {
	return typed[L](h.s.acquire(ctx))
}

// Inspect serves the function Inspect.
func (h handle[L]) Inspect(ctx context.Context) (Holder, error) { return h.s.inspect(ctx) }

func typed[L Lease](l *lease, err error) (L, error) {
	if err != nil {
		var none L
		return none, err
	}
	if plain, ok := any(l).(L); ok {
		return plain, nil
	}
	return any(fencedLease{l}).(L), nil
}

func (s *spec) tryAcquire(ctx context.Context) (*lease, error) {
	began := s.b.clock.now()
	l, err := s.try(ctx)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	s.traceAcquired(l, began)
	return l, nil
}

func (s *spec) acquire(ctx context.Context) (*lease, error) {
	began := s.b.clock.now()
	l, err := s.wait(ctx)
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	s.traceAcquired(l, began)
	return l, nil
}

func (s *spec) traceAcquired(l *lease, began moment) {
	s.b.opts.Trace.acquired(AcquiredInfo{Name: s.name, Owner: l.grant.Owner, Token: l.token, Took: s.b.clock.now() - began})
}

// failed names the lock and, if ctx ended, says so whatever the driver said.
func (s *spec) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) && !errors.Is(err, ErrClosed) {
		err = gaveUp(ctx, err)
	}
	return s.b.failed("acquire", s.name, err)
}

// try makes one attempt. It is bounded: a grant that comes later than its TTL
// is of no use.
func (s *spec) try(ctx context.Context) (*lease, error) {
	if s.err != nil {
		return nil, s.err
	}
	bounded, cancel := context.WithTimeout(ctx, min(s.ttl, callBound))
	defer cancel()
	l, err := s.attempt(bounded, s.b.driver.TryAcquire, false)
	return l, outlived(ctx, bounded, err)
}

// outlived makes an error of a call that ran out of the engine's own bound not
// look like the end of the caller's context.
func outlived(caller, bounded context.Context, err error) error {
	if err == nil || bounded.Err() == nil || caller.Err() != nil || errors.Is(err, ErrLost) {
		return err
	}
	return drivers.Unavailable(fmt.Errorf("no answer in time: %v", err)) //nolint:errorlint // hidden on purpose
}

// attempt asks the driver once. Whatever has no clear answer is reclaimed.
func (s *spec) attempt(ctx context.Context, ask func(context.Context, drivers.Request) (drivers.Grant, error), waited bool) (*lease, error) {
	if s.err != nil {
		return nil, s.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !s.b.beginAttempt() {
		return nil, ErrClosed
	}
	defer s.b.running.Done()
	r := s.request()
	began := s.b.clock.instant()
	g, err := ask(ctx, r)
	if definite(err) {
		return nil, s.explain(err)
	}
	if err == nil {
		var l *lease
		if l, err = s.adopt(ctx, r, g, began, waited); err == nil {
			return l, nil
		}
	}
	s.b.reclaim(drivers.Grant{Name: r.Name, Owner: r.Owner, TTL: r.TTL, State: g.State})
	return nil, err
}

// explain reads the holder of a *HeldError, for people.
func (s *spec) explain(err error) error {
	var held *drivers.HeldError
	if !errors.As(err, &held) {
		return err
	}
	h := s.b.readHolder(held.Holder)
	h.Remaining = cmp.Or(h.Remaining, held.Remaining)
	return &HeldError{Holder: h, Remaining: h.Remaining}
}

// definite reports whether a driver's error says that nothing was granted.
func definite(err error) bool {
	var config *ConfigError
	if errors.As(err, &config) || errors.Is(err, drivers.ErrNotSent) {
		return true
	}
	return errors.Is(err, ErrHeld) && !errors.Is(err, ErrUnavailable) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// adopt makes a lease of a grant, if there is time left on it.
func (s *spec) adopt(ctx context.Context, r drivers.Request, g drivers.Grant, began instant, waited bool) (*lease, error) {
	token, err := s.vet(r, g)
	if err != nil {
		return nil, err
	}
	since := began.at
	switch {
	case !g.Since.IsZero():
		since = began.moment(g.Since)
	case waited:
		if since, g.TTL, err = s.confirm(ctx, g); err != nil {
			return nil, err
		}
	}
	l := newLease(s.b, g, token, since)
	if !s.b.leaseBegan(l) {
		return nil, ErrClosed
	}
	if !l.start() {
		s.b.leaseGone(l)
		return nil, drivers.Unavailable(errLate)
	}
	return l, nil
}

var errLate = errors.New("the grant came after its time was over")

// confirm renews a grant that was pushed: who waited does not know when its
// time began.
func (s *spec) confirm(ctx context.Context, g drivers.Grant) (since moment, ttl time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.TTL)
	defer cancel()
	since = s.b.clock.now()
	ttl, err = s.b.driver.Renew(ctx, g)
	return since, ttl, err
}

// vet refuses what a driver must not return, and makes the token.
func (s *spec) vet(r drivers.Request, g drivers.Grant) (Token, error) {
	switch {
	case g.Name != r.Name || g.Owner != r.Owner:
		return 0, errors.New("driver defect: the grant is for another request")
	case g.TTL <= 0:
		return 0, errors.New("driver defect: the grant has no time to live")
	case s.fenced && g.Token <= 0 && !s.b.Guarantees().Has(Fencing):
		return 0, s.b.noFencing() // any more
	case s.fenced && g.Token <= 0:
		return 0, errors.New("driver defect: the grant has no fencing token")
	case g.Token > math.MaxInt64-s.b.opts.TokenBase:
		return 0, &ConfigError{Key: "lock_token_base", Problem: "is too large: the token overflows", Fix: "use a smaller one"}
	case g.Token <= 0:
		return 0, nil
	}
	return s.b.opts.TokenBase + g.Token, nil
}

func (s *spec) inspect(ctx context.Context) (Holder, error) {
	if s.err != nil {
		return Holder{}, s.b.failed("inspect", s.name, s.err)
	}
	i, ok := s.b.driver.(drivers.Inspector)
	if !ok {
		return Holder{}, s.b.failed("inspect", s.name, errors.ErrUnsupported)
	}
	bounded, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	h, err := i.Inspect(bounded, s.name)
	return s.b.readHolder(h), s.b.failed("inspect", s.name, outlived(ctx, bounded, err))
}
