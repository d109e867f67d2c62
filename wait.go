package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockkit/lock/drivers"
)

// firstPoll is the first pause of a waiter that no service wakes.
const firstPoll = 10 * time.Millisecond

// failingPoll is the longest pause while the service does not answer.
const failingPoll = time.Second

// inspectBound is how much later a wait that is given up returns, at most, so
// that its error can tell who holds the name.
const inspectBound = 200 * time.Millisecond

// A wait is one Acquire that is first in line in its process.
type wait struct {
	*spec
	place
	pause   time.Duration // before the next attempt, before jitter
	failing moment        // since when the service does not answer; 0: it does
	refusal error         // its last answer, for the error of a wait that is given up
}

// wait stands in line with the other waiters of this process, and then tries
// until it has a lease.
func (s *spec) wait(ctx context.Context) (*lease, error) {
	if s.err != nil {
		return nil, s.err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.b.closing, func() { cancel(ErrClosed) })()

	place, err := s.b.rooms.enter(ctx, s.name)
	if err != nil {
		return nil, gaveUp(ctx, s.whoHolds(ctx, ErrHeld))
	}
	defer place.leave()
	w := &wait{spec: s, place: place, pause: firstPoll}
	l, err := w.run(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, gaveUp(ctx, s.whoHolds(ctx, w.refusal))
	}
	return l, err
}

func (w *wait) run(ctx context.Context) (*lease, error) {
	for {
		l, err := w.once(ctx)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil || !w.mayRepeat(err) {
			return nil, err
		}
		next := w.untilNext(err)
		w.b.opts.Trace.waiting(WaitingInfo{Name: w.name, Err: err, Next: next})
		if !w.sleep(ctx, next) {
			return nil, err
		}
	}
}

// once makes an attempt and, when it is refused, lets the service do the
// waiting if it can. An attempt that is bound to be refused is left out.
func (w *wait) once(ctx context.Context) (*lease, error) {
	waiter, can := w.b.driver.(drivers.Waiter)
	if can && w.stood {
		return w.attempt(ctx, waiter.Acquire, true)
	}
	l, err := w.try(ctx)
	if !can || !errors.Is(err, ErrHeld) {
		return l, err
	}
	w.answered(err)
	return w.attempt(ctx, waiter.Acquire, true)
}

// mayRepeat tells whether an attempt may go better the next time. A service
// that does not answer is borne with for one TTL.
func (w *wait) mayRepeat(err error) bool {
	now := w.b.clock.now()
	switch {
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrLost):
		if w.failing == 0 {
			w.failing = now
		}
		if w.refusal == nil {
			w.refusal = err
		}
		return now-w.failing < w.ttl
	case errors.Is(err, ErrHeld), errors.Is(err, ErrNoQuorum):
		w.answered(err)
		return true
	}
	return false
}

func (w *wait) answered(err error) {
	if w.failing != 0 {
		w.failing, w.pause = 0, firstPoll
	}
	w.refusal = err
}

// untilNext is the pause before the next attempt: growing, at random within a
// half so that waiters spread, and never past the end of the holder's time.
func (w *wait) untilNext(err error) time.Duration {
	most := w.b.opts.Poll
	if w.failing != 0 {
		most = max(most, failingPoll)
	}
	pause := min(w.pause/2+rand.N(w.pause), most)
	w.pause = min(w.pause*3/2, max(most, firstPoll))
	var held *HeldError
	if errors.As(err, &held) && held.Remaining > 0 {
		pause = min(pause, held.Remaining+time.Millisecond)
	}
	return pause
}

// sleep returns false if ctx ended.
func (w *wait) sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.nudge:
		w.pause = firstPoll
	case <-ctx.Done():
		return false
	}
	return true
}

// whoHolds asks, shortly, who is in the way of a wait that is given up: it may
// have been long since the service said so by itself.
func (s *spec) whoHolds(ctx context.Context, last error) error {
	inspector, can := s.b.driver.(drivers.Inspector)
	if !can || s.b.closing.Err() != nil {
		return last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inspectBound)
	defer cancel()
	h, err := inspector.Inspect(ctx, s.name)
	if err != nil {
		return last
	}
	return &HeldError{Holder: s.b.readHolder(h), Remaining: h.Remaining}
}

// gaveUp is the error of a wait that ctx ended. It tells who was in the way.
func gaveUp(ctx context.Context, refusal error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrClosed) {
		return ErrClosed
	}
	err := ctx.Err()
	if cause != err { //nolint:errorlint // the very same error is meant
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if refusal == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, refusal)
}
