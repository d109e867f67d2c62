package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

// A polled driver wakes nobody: it shows nothing but the contract.
type polled struct{ drivers.Driver }

func (p polled) Guarantees() drivers.Guarantee {
	return p.Driver.Guarantees() &^ (drivers.Prompt | drivers.Fair)
}

func openPolled(store *memory.Store) func(context.Context) (drivers.Driver, error) {
	return func(context.Context) (drivers.Driver, error) { return polled{memory.New(store, nil)}, nil }
}

func TestALeaseIsHeldUntilThePausesOfAPollingWaiterHaveGrown(t *testing.T) {
	const n = 2
	began := time.Now()
	speed, err := Measure(t.Context(), MeasureConfig{Open: openPolled(memory.NewStore()), Pairs: 1, Handoffs: n, Hold: time.Millisecond})
	if err != nil || speed.HandoffMax <= 0 {
		t.Fatalf("%+v %v", speed, err)
	}
	if took := time.Since(began); took < n*pollGrowth() {
		t.Errorf("%d hand-offs took %v", n, took)
	}
	if s := (&stopwatch{prompt: true}).holdFor(time.Millisecond); s > 3*time.Millisecond {
		t.Errorf("a waiter that is woken waits for %v", s)
	}
}

// The constants of measure.go are those of the engine.
func TestTheEnginePollsAsMeasureTakesItTo(t *testing.T) {
	store := memory.NewStore()
	var begun time.Time
	holder, waiter := backendOf(t, store, nil), backendOf(t, store, &lock.Trace{Waiting: func(w lock.WaitingInfo) {
		if w.Next > longestPause {
			t.Errorf("a pause of %v, where %v is taken for the longest", w.Next, longestPause)
		}
		if grown := time.Since(begun) > pollGrowth(); grown && w.Next < longestPause/2 {
			t.Errorf("a pause of %v after %v", w.Next, pollGrowth())
		}
	}})
	if _, err := holder.TryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*pollGrowth())
	defer cancel()
	begun = time.Now()
	if _, err := waiter.Acquire(ctx); err == nil {
		t.Error("a held lock was granted")
	}
}

func backendOf(t *testing.T, store *memory.Store, trace *lock.Trace) lock.Lock {
	t.Helper()
	d, err := openPolled(store)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := lock.New(d, &lock.Options{Trace: trace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.Lock("held", nil)
}
