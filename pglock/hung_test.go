package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

// hungPatience is well above what a call may take, and far below the hour for
// which the locks are held.
const hungPatience = 25 * time.Second

// calls are those of a driver without a deadline, with two locks that it holds.
func calls(d drivers.Driver, kept, done drivers.Grant) map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"acquire": func() error { _, err := d.TryAcquire(ctx, forAnHour("late")); return err },
		"renew":   func() error { _, err := d.Renew(ctx, kept); return err },
		"release": func() error { return d.Release(ctx, done) },
		"inspect": func() error { _, err := d.(drivers.Inspector).Inspect(ctx, "kept"); return err },
		"check":   func() error { _, err := d.(drivers.Checker).Check(ctx); return err },
	}
}

func forAnHour(name string) drivers.Request {
	r := request(name)
	r.TTL = time.Hour
	return r
}

func TestCallsEndThoughTheServerHangs(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := servers.For(t, servers.Postgres, servers.Options{})
			d := openURL(t, rawURL(t, c.Addrs()[0], mode))
			kept, done := acquire(t, d, forAnHour("kept")), acquire(t, d, forAnHour("done"))
			release(t, d, acquire(t, d, forAnHour("late")))
			if err := c.Nodes[0].Pause(); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for what, call := range calls(d, kept, done) {
				wg.Go(func() { endsAsUnavailable(t, what, call) })
			}
			wg.Wait()
			if err := c.Nodes[0].Resume(); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Renew(t.Context(), kept); err != nil {
				t.Fatal("a lock was lost with the calls:", err)
			}
			if mode == "lock_mode=advisory" { // nobody has to release what came too late
				other := openURL(t, rawURL(t, c.Addrs()[0], mode))
				acquireSoon(t, other, forAnHour("late"))
			}
		})
	}
}

// endsAsUnavailable makes sure that a call ends in time, and not as if its
// caller's context had.
func endsAsUnavailable(t *testing.T, what string, call func() error) {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		if !errors.Is(err, drivers.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, want ErrUnavailable", what, err)
		}
	case <-time.After(hungPatience):
		t.Errorf("%s hangs", what)
	}
}
