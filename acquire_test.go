package lock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

func TestAnUnclearAcquireIsReclaimed(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.store.SetFaults(memory.Faults{After: on(memory.OpAcquire, func(context.Context) error {
			return drivers.Unavailable(errors.New("reply lost"))
		})})
		ctx, cancel := context.WithCancel(w.Context())
		_, err := w.b.Lock("job", nil).TryAcquire(ctx)
		w.is(err, lock.ErrUnavailable)
		cancel() // the clean-up is none of this context's business
		synctest.Wait()
		if !w.isFree() {
			t.Error("the name is held by nobody")
		}
	})
}

func TestAReclaimIsRepeatedUntilTheServiceAnswers(t *testing.T) {
	bubble(t, nil, func(w *world) {
		var down atomic.Bool
		down.Store(true)
		w.store.SetFaults(memory.Faults{
			After: on(memory.OpAcquire, func(context.Context) error { return errors.New("reply lost") }),
			Before: on(memory.OpRelease, func(context.Context) error {
				if down.Load() {
					return drivers.Unavailable(errors.New("still down"))
				}
				return nil
			}),
		})
		_, err := w.b.Lock("job", &lock.LockOptions{TTL: time.Hour}).TryAcquire(w.Context())
		if err == nil {
			t.Fatal("a lost reply is no success")
		}
		time.Sleep(time.Minute)
		down.Store(false)
		time.Sleep(2 * time.Second)
		if !w.isFree() {
			t.Error("the name is held by nobody")
		}
	})
}

func TestAGrantThatCameTooLateIsGivenBack(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.store.SetFaults(memory.Faults{After: on(memory.OpAcquire, func(context.Context) error {
			time.Sleep(ttl)
			return nil
		})})
		l, err := w.b.Lock("job", nil).TryAcquire(w.Context())
		if err == nil {
			t.Fatalf("got a lease with the deadline %v", l.Deadline())
		}
		w.is(err, lock.ErrUnavailable)
		synctest.Wait()
		if !w.isFree() {
			t.Error("the name is still held")
		}
	})
}

func TestARefusalNamesTheHolder(t *testing.T) {
	bubble(t, nil, func(w *world) {
		_, err := w.b.Lock("job", &lock.LockOptions{Note: "nightly report"}).Acquire(w.Context())
		w.ok(err)
		_, err = w.b.Lock("job", nil).TryAcquire(w.Context())
		w.is(err, lock.ErrHeld)
		var held *lock.HeldError
		if !errors.As(err, &held) {
			t.Fatalf("%v is no *HeldError", err)
		}
		host, _ := os.Hostname()
		if h := held.Holder; h.Note != "nightly report" || h.Host != host || h.PID != os.Getpid() || !h.You || h.Remaining <= 0 {
			t.Errorf("the holder is told as %+v", h)
		}
		for _, part := range []string{"job", "nightly report", "this process"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not tell %q", err, part)
			}
		}
	})
}

func TestAnotherProcessIsNotYou(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.ok(w.rival("somebodyelse"))
		_, err := w.b.Lock("job", nil).TryAcquire(w.Context())
		var held *lock.HeldError
		if !errors.As(err, &held) || held.Holder.You {
			t.Errorf("got %v", err)
		}
	})
}

func TestGivingUpMatchesTheContextAndNamesTheHolder(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.acquire()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		l, err := w.b.Lock("job", nil).Acquire(ctx)
		if l != nil {
			t.Fatal("got a lease")
		}
		w.is(err, context.DeadlineExceeded)
		w.is(err, lock.ErrHeld)
		synctest.Wait()
		if n := strings.Count(err.Error(), "this process"); n != 1 {
			t.Errorf("%q does not tell the holder once", err)
		}
	})
}

func TestADeadContextSendsNothing(t *testing.T) {
	bubble(t, nil, func(w *world) {
		var c calls
		w.store.SetFaults(memory.Faults{Before: c.hook})
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(errors.New("shutting down"))
		for _, acquire := range []func(context.Context) (lock.Lease, error){w.b.Lock("job", nil).TryAcquire, w.b.Lock("job", nil).Acquire} {
			_, err := acquire(ctx)
			w.is(err, context.Canceled)
		}
		if n := c.of(memory.OpAcquire); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestAWaiterWithoutPushTriesAtTheHoldersExpiry(t *testing.T) {
	bubble(t, nil, func(w *world) {
		b := w.backend(plain{w.other()}, &lock.Options{TTL: ttl, Poll: time.Hour})
		w.ok(w.rival("crashed"))
		began := time.Now()
		_, err := b.Lock("job", nil).Acquire(w.Context())
		w.ok(err)
		if late := time.Since(began) - ttl; late < 0 || late > 100*time.Millisecond {
			t.Errorf("got the lock %v after the holder's end", late)
		}
	})
}

func TestPollingIsBoundedAndJittered(t *testing.T) {
	bubble(t, nil, func(w *world) {
		const poll = 100 * time.Millisecond
		d := plain{memory.New(w.store, nil)}
		b := w.backend(d, &lock.Options{TTL: time.Minute, Poll: poll})
		w.ok(w.rival("a"))
		var c calls
		w.store.SetFaults(memory.Faults{Before: c.hook})
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		_, err := b.Lock("job", nil).Acquire(ctx)
		w.is(err, lock.ErrHeld)
		if n := c.of(memory.OpAcquire); n < 50 || n > 110 {
			t.Errorf("%d tries in 5 s with a poll of %v", n, poll)
		}
	})
}

func TestWaitersOfOneProcessTakeOnePlaceInOrder(t *testing.T) {
	bubble(t, nil, func(w *world) {
		const waiters = 20
		first := w.acquire()
		var c calls
		w.store.SetFaults(memory.Faults{Before: c.hook})
		var mu sync.Mutex
		var served []int
		var group sync.WaitGroup
		for i := range waiters {
			group.Go(func() {
				l := w.acquire()
				mu.Lock()
				served = append(served, i)
				mu.Unlock()
				w.ok(l.Release(w.Context()))
			})
			synctest.Wait()
		}
		// The first in line has tried and queued; nobody else has asked.
		if n := c.of(memory.OpAcquire); n != 2 {
			t.Errorf("%d requests for %d waiters, want 2", n, waiters)
		}
		w.ok(first.Release(w.Context()))
		group.Wait()
		if !slices.IsSorted(served) || len(served) != waiters {
			t.Errorf("served in the order %v", served)
		}
	})
}

func TestAWaiterThatGivesUpLetsTheNextOneThrough(t *testing.T) {
	bubble(t, nil, func(w *world) {
		first := w.acquire()
		ctx, cancel := context.WithCancel(w.Context())
		var group sync.WaitGroup
		group.Go(func() {
			_, err := w.b.Lock("job", nil).Acquire(ctx)
			w.is(err, context.Canceled)
		})
		synctest.Wait()
		group.Go(func() { w.ok(w.acquire().Release(w.Context())) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		w.ok(first.Release(w.Context()))
		group.Wait()
	})
}

func TestALocalReleaseWakesAWaiterThatPolls(t *testing.T) {
	bubble(t, nil, func(w *world) {
		b := w.backend(plain{w.other()}, &lock.Options{TTL: ttl, Poll: time.Hour})
		first, err := b.Lock("job", nil).Acquire(w.Context())
		w.ok(err)
		done := make(chan time.Time)
		go func() {
			l, err := b.Lock("job", nil).Acquire(w.Context())
			w.ok(err)
			w.ok(l.Release(w.Context()))
			done <- time.Now()
		}()
		time.Sleep(ttl) // the pauses have grown
		released := time.Now()
		w.ok(first.Release(w.Context()))
		if late := (<-done).Sub(released); late > 10*time.Millisecond {
			t.Errorf("served %v after the release", late)
		}
	})
}

// flaky fails its first attempts.
type flaky struct {
	drivers.Driver
	fails *atomic.Int32
	err   error
}

func (d flaky) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if d.fails.Add(-1) >= 0 {
		return drivers.Grant{}, d.err
	}
	return d.Driver.TryAcquire(ctx, r)
}

func TestAcquireBearsWithAServiceThatFailsForAWhile(t *testing.T) {
	for _, err := range []error{drivers.Unavailable(errors.New("leader election")), drivers.ErrNoQuorum, drivers.Lost(drivers.SessionEnded, nil)} {
		bubble(t, nil, func(w *world) {
			d := flaky{w.other(), new(atomic.Int32), err}
			d.fails.Store(5)
			l, err := w.backend(d, nil).Lock("job", nil).Acquire(w.Context())
			w.ok(err)
			w.ok(l.Release(w.Context()))
		})
	}
}

func TestAcquireGivesUpOnAServiceThatStaysAway(t *testing.T) {
	bubble(t, nil, func(w *world) {
		d := flaky{w.other(), new(atomic.Int32), drivers.Unavailable(errors.New("connection refused"))}
		d.fails.Store(math.MaxInt32)
		began := time.Now()
		_, err := w.backend(d, nil).Lock("job", nil).Acquire(w.Context())
		w.is(err, lock.ErrUnavailable)
		if took := time.Since(began); took < ttl || took > 2*ttl {
			t.Errorf("gave up after %v, want about one TTL of %v", took, ttl)
		}
	})
}

func TestAcquireGivesUpAtOnceOnWhatWillNotPass(t *testing.T) {
	bubble(t, nil, func(w *world) {
		refused := errors.New("permission denied")
		d := flaky{w.other(), new(atomic.Int32), refused}
		d.fails.Store(1)
		_, err := w.backend(d, nil).Lock("job", nil).Acquire(w.Context())
		w.is(err, refused)
	})
}

func TestTryAcquireIsBoundedWhenTheServiceHangs(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.store.SetFaults(memory.Faults{Before: on(memory.OpAcquire, hang)})
		began := time.Now()
		_, err := w.b.Lock("job", nil).TryAcquire(w.Context())
		w.is(err, lock.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v looks like the end of the caller's context", err)
		}
		if took := time.Since(began); took > ttl {
			t.Errorf("TryAcquire took %v", took)
		}
	})
}

// pushed hands out grants without knowing when their time began.
type pushed struct {
	*memory.Driver
	renewals *atomic.Int32
}

func (d pushed) Acquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	g, err := d.Driver.Acquire(ctx, r)
	g.Since = time.Time{}
	return g, err
}

func (d pushed) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	d.renewals.Add(1)
	return d.Driver.Renew(ctx, g)
}

func TestAPushedGrantIsConfirmedByOneRenewal(t *testing.T) {
	bubble(t, nil, func(w *world) {
		d := pushed{w.other(), new(atomic.Int32)}
		b := w.backend(d, nil)
		w.ok(w.rival("a"))
		l, err := b.Lock("job", nil).Acquire(w.Context())
		w.ok(err)
		if n := d.renewals.Load(); n != 1 {
			t.Errorf("%d renewals before the lease was returned, want 1", n)
		}
		w.ok(l.Release(w.Context()))
	})
}

func TestAPushedGrantThatIsGoneIsNotReturned(t *testing.T) {
	bubble(t, nil, func(w *world) {
		d := pushed{w.other(), new(atomic.Int32)}
		b := w.backend(d, nil)
		w.ok(w.rival("a"))
		var drops atomic.Int32
		w.store.SetFaults(memory.Faults{Before: on(memory.OpRenew, func(context.Context) error {
			if drops.Add(1) == 1 {
				w.store.Drop("job")
			}
			return nil
		})})
		l, err := b.Lock("job", nil).Acquire(w.Context())
		w.ok(err) // at the second try
		w.ok(l.Err())
		if w.isFree() {
			t.Error("the lease stands on nothing")
		}
	})
}

// lying returns what no driver may.
type lying struct {
	drivers.Driver
	spoil func(*drivers.Grant)
}

func (d lying) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	g, err := d.Driver.TryAcquire(ctx, r)
	d.spoil(&g)
	return g, err
}

func TestADriversDefectIsNoLease(t *testing.T) {
	defects := map[string]func(*drivers.Grant){
		"no time to live": func(g *drivers.Grant) { g.TTL = 0 },
		"another name":    func(g *drivers.Grant) { g.Name = "x" },
		"another owner":   func(g *drivers.Grant) { g.Owner = "x" },
		"no token":        func(g *drivers.Grant) { g.Token = 0 },
		"old":             func(g *drivers.Grant) { g.Since = g.Since.Add(-ttl) },
	}
	for name, spoil := range defects {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(w *world) {
				b := w.backend(lying{w.other(), spoil}, nil)
				l, err := b.FencedLock("job", nil)
				w.ok(err)
				if _, err := l.TryAcquire(w.Context()); err == nil {
					t.Error("got a lease")
				}
				synctest.Wait()
				if !w.isFree() {
					t.Error("the grant was not given back")
				}
			})
		})
	}
}

func TestBadInputSendsNothing(t *testing.T) {
	bubble(t, nil, func(w *world) {
		var c calls
		w.store.SetFaults(memory.Faults{Before: c.hook})
		bad := map[string]lock.Lock{
			"name":      w.b.Lock("", nil),
			"name ":     w.b.Lock(strings.Repeat("x", 1025), nil),
			"lock_ttl":  w.b.Lock("job", &lock.LockOptions{TTL: -1}),
			"lock_ttl ": w.b.Lock("job", &lock.LockOptions{TTL: drivers.MaxTTL + 1}),
			"lock_note": w.b.Lock("job", &lock.LockOptions{Note: "two\nlines"}),
		}
		for key, l := range bad {
			key = strings.TrimSpace(key)
			for _, acquire := range []func(context.Context) (lock.Lease, error){l.TryAcquire, l.Acquire} {
				_, err := acquire(w.Context())
				var config *lock.ConfigError
				if !errors.As(err, &config) || config.Key != key || config.Fix == "" {
					t.Errorf("%s: got %v", key, err)
				}
			}
		}
		synctest.Wait()
		if n := c.of(memory.OpAcquire) + c.of(memory.OpRelease); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestFencedLocksAreRefusedWithoutFencing(t *testing.T) {
	bubble(t, nil, func(w *world) {
		b := w.backend(promising{w.other(), lock.Prompt}, nil)
		_, err := b.FencedLock("job", nil)
		var unmet *lock.UnmetError
		if !errors.As(err, &unmet) || unmet.Want != lock.Fencing || len(unmet.Why) != 1 {
			t.Errorf("got %v", err)
		}
	})
}

func TestTokensRiseByTheBase(t *testing.T) {
	bubble(t, nil, func(w *world) {
		b := w.backend(w.other(), &lock.Options{TTL: ttl, TokenBase: 1000})
		fenced, err := b.FencedLock("job", nil)
		w.ok(err)
		for want := lock.Token(1001); want < 1004; want++ {
			l, err := fenced.Acquire(w.Context())
			w.ok(err)
			if l.Token() != want {
				t.Errorf("token %d, want %d", l.Token(), want)
			}
			h, err := lock.Inspect(w.Context(), fenced)
			w.ok(err)
			if h.Token != want {
				t.Errorf("Inspect tells the token %d, want %d", h.Token, want)
			}
			w.ok(l.Release(w.Context()))
		}
	})
}

func TestATokenThatOverflowsIsNoLease(t *testing.T) {
	bubble(t, nil, func(w *world) {
		b := w.backend(w.other(), &lock.Options{TTL: ttl, TokenBase: math.MaxInt64})
		fenced, err := b.FencedLock("job", nil)
		w.ok(err)
		_, err = fenced.TryAcquire(w.Context())
		var config *lock.ConfigError
		if !errors.As(err, &config) || config.Key != "lock_token_base" {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if !w.isFree() {
			t.Error("the grant was not given back")
		}
	})
}

func TestCloseReleasesWhatIsHeldAndEndsWaits(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		waits := make(chan error)
		for range 3 {
			go func() {
				_, err := w.b.Lock("job", nil).Acquire(w.Context())
				waits <- err
			}()
		}
		synctest.Wait()
		w.ok(w.b.Close())
		for range 3 {
			w.is(<-waits, lock.ErrClosed)
		}
		w.is(l.Err(), lock.ErrReleased)
		if !w.isFree() {
			t.Error("the name is still held")
		}
		_, err := w.b.Lock("job", nil).TryAcquire(w.Context())
		w.is(err, lock.ErrClosed)
		w.ok(w.b.Close())
	})
}

func TestCloseIsBoundedWhenTheServiceHangs(t *testing.T) {
	bubble(t, nil, func(w *world) {
		w.acquire()
		w.store.SetFaults(memory.Faults{Before: hangAll})
		began := time.Now()
		_ = w.b.Close()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

func hangAll(ctx context.Context, _ memory.Call) error { return hang(ctx) }

func TestDistinctNamesNeverBlockEachOther(t *testing.T) {
	bubble(t, nil, func(w *world) {
		for i := range 100 {
			_, err := w.b.Lock(fmt.Sprint("job-", i), nil).TryAcquire(w.Context())
			w.ok(err)
		}
		time.Sleep(3 * ttl)
	})
}

func TestARequestThatWasNotSentIsNotReclaimed(t *testing.T) {
	bubble(t, nil, func(w *world) {
		var c calls
		w.store.SetFaults(memory.Faults{Before: c.hook})
		d := flaky{w.other(), new(atomic.Int32), drivers.NotSent(errors.New("connection refused"))}
		d.fails.Store(math.MaxInt32)
		_, err := w.backend(d, nil).Lock("job", nil).Acquire(w.Context())
		w.is(err, lock.ErrUnavailable)
		synctest.Wait()
		if n := c.of(memory.OpRelease); n != 0 {
			t.Errorf("%d releases of what was never sent", n)
		}
	})
}

func TestAServiceThatIsAwayIsAskedLessAndLess(t *testing.T) {
	bubble(t, nil, func(w *world) {
		d := flaky{w.other(), new(atomic.Int32), drivers.Unavailable(errors.New("connection refused"))}
		d.fails.Store(math.MaxInt32)
		_, err := w.backend(d, &lock.Options{TTL: time.Minute}).Lock("job", nil).Acquire(w.Context())
		w.is(err, lock.ErrUnavailable)
		if tries := math.MaxInt32 - d.fails.Load(); tries > 120 {
			t.Errorf("asked %d times in a minute", tries)
		}
	})
}

func TestCloseWaitsForAReleaseUnderWay(t *testing.T) {
	bubble(t, nil, func(w *world) {
		l := w.acquire()
		w.store.SetFaults(memory.Faults{Before: on(memory.OpRelease, func(context.Context) error {
			time.Sleep(time.Second)
			return nil
		})})
		released := make(chan error)
		go func() { released <- l.Release(w.Context()) }()
		synctest.Wait()
		w.ok(w.b.Close())
		w.ok(<-released)
		if !w.isFree() {
			t.Error("the name is still held")
		}
	})
}
