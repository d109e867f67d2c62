package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

var sinceChecks = []Check{
	{ID: "basic/since", Promise: "basic", run: since, slow: true,
		Rule: "A holder's time is counted from before its request or renewal was sent, and is over before the service gives the name away"},
}

// since looks at the two traces that a driver leaves which counts from the
// reply: Since is as young as the reply, and the service's time is over before
// the holder's.
func since(ctx context.Context, e *env) error {
	if err := e.sinceIsBeforeSending(ctx); err != nil {
		return err
	}
	return together(len(beginnings), func(i int) error {
		h, err := beginnings[i](ctx, e)
		if err != nil || h == nil {
			return err
		}
		return h.lasts(ctx)
	})
}

// sinceIsBeforeSending compares how old Since is at the return with the fastest
// of many exchanges: the exchange of the grant lies between them. It sees a
// driver that counts from the reply also where replies come so soon that the
// margin covers it. In one process, where asking takes no time, there is
// nothing to see.
func (e *env) sinceIsBeforeSending(ctx context.Context) error {
	const rounds, noTime, part = 15, 50 * time.Microsecond, 20
	fastest := time.Hour
	var ages []time.Duration
	for range rounds {
		h, err := e.take(ctx)
		if err != nil {
			return err
		}
		ages = append(ages, h.told.Sub(h.from))
		asked := time.Now()
		if err := h.refuses(ctx, e.b); err != nil {
			return err
		}
		fastest = min(fastest, time.Since(asked))
		if err := h.renew(ctx); err != nil {
			return err
		}
		fastest = min(fastest, h.told.Sub(h.from))
		if err := h.release(ctx); err != nil {
			return err
		}
	}
	slices.Sort(ages)
	if age := ages[rounds/2]; fastest >= noTime && age < fastest/part {
		return unless(fmt.Errorf("Since is mostly just %v before the return, though no exchange took less than %v: it is counted from the reply", age, fastest))
	}
	return nil
}

// beginnings are the ways in which a holder's time begins. A way that the
// driver does not have gives no hold.
var beginnings = []func(context.Context, *env) (*hold, error){
	func(ctx context.Context, e *env) (*hold, error) { return e.takeAlone(ctx) },
	func(ctx context.Context, e *env) (*hold, error) {
		h, err := e.takeAlone(ctx)
		if err != nil {
			return nil, err
		}
		pause(ctx, time.Until(h.from.Add(h.ttl/2)))
		return h, h.renew(ctx)
	},
	func(ctx context.Context, e *env) (*hold, error) {
		d, err := e.open(ctx)
		if err != nil {
			return nil, err
		}
		w, ok := d.(drivers.Waiter)
		if !ok {
			return nil, nil //nolint:nilnil // see beginnings
		}
		return e.once(ctx, d, w.Acquire, e.request(e.name(), e.ttl))
	},
	func(ctx context.Context, e *env) (*hold, error) {
		d, err := e.open(ctx)
		if err != nil {
			return nil, err
		}
		w, ok := d.(drivers.Waiter)
		if !ok {
			return nil, nil //nolint:nilnil // see beginnings
		}
		return e.succeeds(ctx, d, w)
	},
}

// succeeds waits for a name that is held and then released.
func (e *env) succeeds(ctx context.Context, d drivers.Driver, w drivers.Waiter) (h *hold, err error) {
	former, err := e.take(ctx)
	if err != nil {
		return nil, err
	}
	err = together(2, func(i int) (err error) {
		if i == 0 {
			pause(ctx, settle)
			return former.release(ctx)
		}
		for {
			h, err = e.once(ctx, d, w.Acquire, e.request(former.g.Name, e.ttl))
			if !isHeld(err) || ctx.Err() != nil {
				return err
			}
			pause(ctx, 20*time.Millisecond)
		}
	})
	return h, err
}

// lasts looks at the grant until the holder's time is over, through everything
// that can prove that the service ended it before: a grant to another owner, a
// refusal that names another, and a renewal at the last moment that is answered
// with ErrLost. Grants alone prove too little: the reply to the successor may
// be as slow as that to the holder. That the service keeps it longer is no fault.
func (h *hold) lasts(ctx context.Context) error {
	undo, err := h.silence()
	if err != nil {
		return err
	}
	defer undo()
	var seen lastSeen
	err = together(3, func(i int) error {
		switch {
		case i < 2:
			return h.watchedBy(ctx, []drivers.Driver{h.e.b, h.e.c}[i], &seen)
		case h.e.Silence != nil: // nobody can renew who is cut off
			return nil
		}
		return h.renewsLast(ctx, &seen)
	})
	if err != nil {
		return err
	}
	if seen.at.Before(h.validUntil().Add(-h.ttl / 10)) {
		return tooSlow("nothing showed the grant in the last tenth of the holder's time")
	}
	return nil
}

// watchedBy asks for the name until it is granted or the holder's time is over.
func (h *hold) watchedBy(ctx context.Context, d drivers.Driver, seen *lastSeen) error {
	until := h.validUntil()
	pause(ctx, time.Until(until.Add(-h.ttl/4)))
	for ctx.Err() == nil {
		sent := time.Now()
		if !sent.Before(until) {
			return nil
		}
		next, err := h.e.try(ctx, d, h.g.Name, h.e.longTTL)
		early := time.Until(until)
		var no *drivers.HeldError
		switch refused := errors.As(err, &no); {
		case err == nil && next.told.Before(until):
			return fmt.Errorf("another owner was granted it %v before the holder's time was over", until.Sub(next.told))
		case err == nil:
			return nil
		case !refused:
			return err
		case no.Holder.Owner == h.g.Owner:
			seen.note(sent)
		case no.Holder.Owner != "" && early > 0:
			return fmt.Errorf("another owner held it %v before the holder's time was over", early)
		}
		pause(ctx, min(h.e.pollEvery(), 5*time.Millisecond))
	}
	return ctx.Err()
}

// renewsLast renews just before the holder's time is over. Only an answer that
// comes before that proves anything.
func (h *hold) renewsLast(ctx context.Context, seen *lastSeen) error {
	until := h.validUntil()
	pause(ctx, time.Until(until.Add(-max(h.ttl/50, 5*time.Millisecond))))
	sent := time.Now()
	_, err := h.d.Renew(ctx, h.g)
	early := time.Until(until)
	switch {
	case err == nil:
		seen.note(sent)
	case early > 0 && errors.Is(err, drivers.ErrLost):
		return fmt.Errorf("it was lost %v before the holder's time was over: %w", early, err)
	}
	return nil
}

// A lastSeen is when the latest question was sent whose answer showed that the
// grant was still there.
type lastSeen struct {
	mu sync.Mutex
	at time.Time
}

func (l *lastSeen) note(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.at) {
		l.at = at
	}
}
