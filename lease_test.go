package lock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

func TestAHungRenewalNeverKeepsALeaseAlive(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		w.store.SetFaults(memory.Faults{Before: func(ctx context.Context, c memory.Call) error {
			if c.Op == memory.OpAcquire {
				return nil // the rival's
			}
			return hang(ctx)
		}})
		<-l.Done()
		w.is(l.Err(), lock.ErrLost)
		var lost *lock.LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != drivers.Unreachable {
			t.Errorf("lost with %v, want the reason %q", l.Err(), drivers.Unreachable)
		}
		w.is(w.rival("b"), lock.ErrHeld) // the holder gave up before the service did
	})
}

func TestALeaseEndsByTheHoldersTimerFromBeforeSending(t *testing.T) {
	bubble(t, nil, func(w *world) {
		const slow = 3 * time.Second
		w.store.SetFaults(memory.Faults{
			Before: on(memory.OpRenew, hang),
			After: on(memory.OpAcquire, func(context.Context) error {
				time.Sleep(slow) // the reply is late
				return nil
			}),
		})
		began := time.Now()
		l := w.acquire()
		want := began.Add(ttl - drivers.Margin(ttl))
		if got := l.Deadline(); got.After(want) {
			t.Errorf("the lease ends at %v, want no later than %v", got, want)
		}
	})
}

func TestSuspendCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, slept := time.Now(), atomic.Int64{}
		lock.SetBootTime(func() time.Duration { return time.Since(start) + time.Duration(slept.Load()) })
		defer lock.SetBootTime(func() time.Duration { return 0 })
		w := &world{T: t, store: memory.NewStore()}
		w.b = w.backend(memory.New(w.store, nil), nil)
		l := w.acquire()
		w.ok(l.Err())
		slept.Store(int64(ttl))
		w.is(l.Err(), lock.ErrLost)
		<-l.Done()
	})
}

func TestTheKeeperNoticesASuspendWithinATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, slept := time.Now(), atomic.Int64{}
		lock.SetBootTime(func() time.Duration { return time.Since(start) + time.Duration(slept.Load()) })
		defer lock.SetBootTime(func() time.Duration { return 0 })
		w := &world{T: t, store: memory.NewStore()}
		w.b = w.backend(memory.New(w.store, nil), nil)
		l := w.acquire()
		slept.Store(int64(ttl))
		woke := time.Now()
		<-l.Done()
		if late := time.Since(woke); late > 250*time.Millisecond {
			t.Errorf("Done was closed %v after the wake-up", late)
		}
	})
}

func TestRenewalKeepsALease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		time.Sleep(20 * ttl)
		w.ok(l.Err())
		w.is(w.rival("b"), lock.ErrHeld)
		if left := time.Until(l.Deadline()); left < ttl/2 || left > ttl {
			t.Errorf("%v left of a TTL of %v", left, ttl)
		}
		w.ok(l.Release(w.Context()))
		w.ok(w.rival("b"))
	})
}

func TestTheAcquireContextNeverOwnsTheLease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		l, err := w.b.Lock("job", nil).Acquire(ctx)
		w.ok(err)
		cancel()
		time.Sleep(5 * ttl)
		w.ok(l.Err())
	})
}

func TestOneFailedRenewalIsNotALoss(t *testing.T) {
	var failed atomic.Int32
	opts := &lock.Options{TTL: ttl, Trace: &lock.Trace{Renewed: func(i lock.RenewedInfo) {
		if i.Err != nil {
			failed.Add(1)
		}
	}}}
	bubble(t, opts, func(w *world) {
		l := w.acquire()
		var calls atomic.Int32
		w.store.SetFaults(memory.Faults{Before: on(memory.OpRenew, func(context.Context) error {
			if calls.Add(1) <= 3 {
				return errors.New("connection reset")
			}
			return nil
		})})
		time.Sleep(5 * ttl)
		w.ok(l.Err())
		if failed.Load() != 3 {
			t.Errorf("%d failed renewals were traced, want 3", failed.Load())
		}
	})
}

func TestADefiniteNotYoursEndsTheLeaseAtOnce(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		w.store.Drop("job")
		w.ok(w.rival("b"))
		began := time.Now()
		<-l.Done()
		w.is(l.Err(), lock.ErrLost)
		if time.Since(began) > ttl/2 {
			t.Error("the loss was not learnt from the next renewal")
		}
		w.is(l.Release(w.Context()), lock.ErrLost)
		w.is(w.rival("c"), lock.ErrHeld) // the late release left the successor alone
	})
}

func TestALostLeaseNeverBecomesValidAgain(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		release := make(chan struct{})
		w.store.SetFaults(memory.Faults{After: on(memory.OpRenew, func(context.Context) error {
			<-release // the service renewed it; the reply comes after the end
			return nil
		})})
		<-l.Done()
		w.is(l.Err(), lock.ErrLost)
		close(release)
		synctest.Wait()
		w.is(l.Err(), lock.ErrLost)
		time.Sleep(ttl)
		w.is(l.Err(), lock.ErrLost)
		if !w.isFree() {
			t.Error("the service still keeps a lease that its holder gave up")
		}
	})
}

func TestARenewalOnItsWayNeverComesAfterTheRelease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		seen := make(chan memory.Op, 8)
		w.store.SetFaults(memory.Faults{Before: func(ctx context.Context, c memory.Call) error {
			if c.Op == memory.OpRenew {
				<-ctx.Done()
			}
			seen <- c.Op
			return nil
		}})
		time.Sleep(ttl / 2)
		w.ok(l.Release(w.Context()))
		if first, second := <-seen, <-seen; first != memory.OpRenew || second != memory.OpRelease {
			t.Errorf("the service saw %v and then %v, want the renewal and then the release", first, second)
		}
		if !w.isFree() {
			t.Error("the name is still held")
		}
	})
}

func TestReleaseWorksUnderACancelledContext(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		w.ok(l.Release(ctx))
		w.is(l.Err(), lock.ErrReleased)
		if !w.isFree() {
			t.Error("the name is still held")
		}
		w.ok(w.rival("b"))
		w.ok(l.Release(ctx)) // the same answer, and the successor is left alone
		w.is(w.rival("c"), lock.ErrHeld)
	})
}

func TestReleaseTellsWhatTheServiceFound(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		w.store.Drop("job")
		err := l.Release(w.Context())
		w.is(err, lock.ErrLost)
		if again := l.Release(w.Context()); again != err { //nolint:errorlint // the very same is promised
			t.Errorf("the second Release says %v, the first %v", again, err)
		}
	})
}

func TestAReleaseThatFailedIsRepeated(t *testing.T) {
	bubble(t, nil, func(w *world) {
		reclaims := make(chan lock.ReclaimedInfo, 1)
		w.b = w.backend(w.other(), &lock.Options{TTL: ttl, Trace: &lock.Trace{Reclaimed: func(i lock.ReclaimedInfo) { reclaims <- i }}})
		l := w.acquire()
		var calls atomic.Int32
		w.store.SetFaults(memory.Faults{Before: on(memory.OpRelease, func(context.Context) error {
			if calls.Add(1) <= 2 {
				return drivers.Unavailable(errors.New("connection reset"))
			}
			return nil
		})})
		w.is(l.Release(w.Context()), lock.ErrUnavailable)
		w.is(l.Err(), lock.ErrReleased)
		reclaimed := <-reclaims
		if !w.isFree() {
			t.Error("the name is still held")
		}
		if reclaimed.Tries != 2 || reclaimed.Err != nil {
			t.Errorf("the reclaim was traced as %+v, want 2 tries and no error", reclaimed)
		}
	})
}

func TestReleaseIsBoundedWhenTheServiceHangs(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		w.store.SetFaults(memory.Faults{Before: on(memory.OpRelease, hang)})
		began := time.Now()
		w.is(l.Release(w.Context()), lock.ErrUnavailable)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Release took %v", took)
		}
		w.store.SetFaults(memory.Faults{})
	})
}

// A watcher reports sessions that ended.
type watcher struct {
	drivers.Driver
	lost chan string
}

func (d watcher) Watch(ctx context.Context, lost func(string, error)) error {
	for {
		select {
		case owner := <-d.lost:
			lost(owner, drivers.Lost(drivers.SessionEnded, nil))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestAWatchersWordEndsTheLeaseAtOnce(t *testing.T) {
	bubble(t, nil, func(w *world) {
		var owner string
		opts := &lock.Options{TTL: ttl, Trace: &lock.Trace{Acquired: func(i lock.AcquiredInfo) { owner = i.Owner }}}
		d := watcher{w.other(), make(chan string)}
		w.b = w.backend(d, opts)
		l := w.acquire()
		began := time.Now()
		d.lost <- owner
		<-l.Done()
		w.is(l.Err(), lock.ErrLost)
		if time.Since(began) != 0 {
			t.Error("the loss waited for a renewal")
		}
	})
}

func TestATraceMayLookAtTheLease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		leases := make(chan lock.Lease, 1)
		ended := make(chan error, 1)
		b := w.backend(w.other(), &lock.Options{TTL: ttl, Trace: &lock.Trace{Ended: func(i lock.EndedInfo) {
			w.is(i.Err, (<-leases).Err())
			ended <- i.Err
		}}})
		l, err := b.Lock("job", nil).Acquire(w.Context())
		w.ok(err)
		leases <- l
		w.ok(l.Release(w.Context()))
		w.is(<-ended, lock.ErrReleased)
	})
}

func TestATraceThatBlocksHoldsUpNoLease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		told := make(chan string, 2)
		b := w.backend(w.other(), &lock.Options{TTL: ttl, Trace: &lock.Trace{Ended: func(i lock.EndedInfo) {
			time.Sleep(5 * ttl)
			told <- i.Name
		}}})
		first, err := b.Lock("first", nil).Acquire(w.Context())
		w.ok(err)
		second, err := b.Lock("second", nil).Acquire(w.Context())
		w.ok(err)
		w.store.Drop("first")
		<-first.Done()
		w.store.Drop("second")
		dropped := time.Now()
		<-second.Done()
		if time.Since(dropped) > ttl {
			t.Error("the second loss waited for what was done about the first")
		}
		if one, two := <-told, <-told; one != "first" || two != "second" {
			t.Errorf("told of %s and then of %s", one, two)
		}
	})
}

// short keeps every grant for a time below the margin.
type short struct {
	drivers.Driver
	acquire bool
}

func (d short) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	g, err := d.Driver.TryAcquire(ctx, r)
	if d.acquire {
		g.TTL = time.Millisecond
	}
	return g, err
}

func (d short) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	_, err := d.Driver.Renew(ctx, g)
	return time.Millisecond, err
}

func TestATimeBelowTheMarginIsNoTime(t *testing.T) {
	bubble(t, nil, func(w *world) {
		_, err := w.backend(short{w.other(), true}, nil).Lock("job", nil).TryAcquire(w.Context())
		w.is(err, lock.ErrUnavailable)
		l, err := w.backend(short{w.other(), false}, nil).Lock("other", nil).TryAcquire(w.Context())
		w.ok(err)
		<-l.Done()
		w.is(l.Err(), lock.ErrLost)
	})
}

func TestAPlainLeaseHasNoToken(t *testing.T) {
	bubble(t, nil, func(w *world) {
		if _, fenced := w.acquire().(lock.Fenced); fenced {
			t.Error("the lease of a plain lock passes for a fenced one")
		}
	})
}
