package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers/memory"
)

func TestDoReleasesAndReturnsWhatFnReturned(t *testing.T) {
	bubble(t, nil, func(w *world) {
		fault := errors.New("disk full")
		w.is(lock.Do(w.Context(), w.b.Lock("job", nil), func(context.Context) error {
			w.is(w.rival("b"), lock.ErrHeld)
			return fault
		}), fault)
		if !w.isFree() {
			t.Error("the name is still held")
		}
	})
}

func TestDoTellsALossEvenIfFnReturnedNil(t *testing.T) {
	bubble(t, nil, func(w *world) {
		err := lock.Do(w.Context(), w.b.Lock("job", nil), func(ctx context.Context) error {
			w.store.SetFaults(memory.Faults{Before: on(memory.OpRenew, hang)})
			<-ctx.Done()
			w.is(context.Cause(ctx), lock.ErrLost)
			return nil
		})
		w.is(err, lock.ErrLost)
	})
}

func TestDoTellsALossThatOnlyTheServiceKnew(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.is(lock.Do(w.Context(), w.b.Lock("job", nil), func(context.Context) error {
			w.store.Drop("job")
			return nil
		}), lock.ErrLost)
	})
}

func TestDoCountsWorkAsDoneWhenOnlyTheReleaseFailed(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.ok(lock.Do(w.Context(), w.b.Lock("job", nil), func(context.Context) error {
			w.store.SetFaults(memory.Faults{Before: on(memory.OpRelease, hang)})
			return nil
		}))
		w.store.SetFaults(memory.Faults{})
		time.Sleep(ttl)
		if !w.isFree() {
			t.Error("the name is still held")
		}
	})
}

func TestDoReleasesWhenFnPanics(t *testing.T) {
	bubble(t, nil, func(w *world) {
		func() {
			defer func() { _ = recover() }()
			_ = lock.Do(w.Context(), w.b.Lock("job", nil), func(context.Context) error { panic("oops") })
		}()
		if !w.isFree() {
			t.Error("the name is still held")
		}
	})
}

func TestTryDoSkipsABusyLock(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.acquire()
		w.is(lock.TryDo(w.Context(), w.b.Lock("job", nil), func(context.Context) error {
			t.Error("fn ran")
			return nil
		}), lock.ErrHeld)
	})
}

func TestDoFencedHandsOverTheToken(t *testing.T) {
	bubble(t, nil, func(w *world) {
		fenced, err := w.b.FencedLock("job", nil)
		w.ok(err)
		var last lock.Token
		for range 3 {
			w.ok(lock.DoFenced(w.Context(), fenced, func(_ context.Context, token lock.Token) error {
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
				return nil
			}))
		}
	})
}

// upper is a user's wrapper: the free functions must serve it, too.
type upper struct{ inner lock.FencedLock }

func (u upper) Name() string { return "UPPER" }
func (u upper) TryAcquire(ctx context.Context) (lock.Fenced, error) {
	return u.inner.TryAcquire(ctx)
}

func (u upper) Acquire(ctx context.Context) (lock.Fenced, error) { return u.inner.Acquire(ctx) }

func TestFreeFunctionsServeUsersWrappers(t *testing.T) {
	bubble(t, nil, func(w *world) {
		fenced, err := w.b.FencedLock("job", nil)
		w.ok(err)
		ran := false
		w.ok(lock.Do(w.Context(), upper{fenced}, func(context.Context) error { ran = true; return nil }))
		w.ok(lock.TryDo(w.Context(), fenced, func(context.Context) error { return nil }))
		if !ran {
			t.Error("fn did not run")
		}
		_, err = lock.Inspect(w.Context(), upper{fenced})
		w.is(err, errors.ErrUnsupported)
	})
}

func TestAContextEndsWithItsLease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		ctx, cancel := lock.Context(w.Context(), l)
		defer cancel()
		w.ok(ctx.Err())
		w.ok(l.Release(w.Context()))
		<-ctx.Done()
		w.is(context.Cause(ctx), lock.ErrReleased)
	})
}

func TestInspectTellsNobody(t *testing.T) {
	bubble(t, nil, func(w *world) {
		_, err := lock.Inspect(w.Context(), w.b.Lock("job", nil))
		w.is(err, lock.ErrNotHeld)
	})
}

func TestTryDoFencedHandsOverTheTokenOrSkips(t *testing.T) {
	bubble(t, nil, func(w *world) {
		fenced, err := w.b.FencedLock("job", nil)
		w.ok(err)
		w.ok(lock.TryDoFenced(w.Context(), fenced, func(_ context.Context, token lock.Token) error {
			if token <= 0 {
				t.Errorf("token %d", token)
			}
			w.is(lock.TryDoFenced(w.Context(), fenced, func(context.Context, lock.Token) error { return nil }), lock.ErrHeld)
			return nil
		}))
	})
}

func TestAContextOfAnEndedLeaseIsNeverAlive(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		w.ok(l.Release(w.Context()))
		ctx, cancel := lock.Context(w.Context(), l)
		defer cancel()
		w.is(context.Cause(ctx), lock.ErrReleased)
	})
}
