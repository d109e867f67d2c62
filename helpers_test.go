package lock_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

const ttl = 10 * time.Second

func TestMain(m *testing.M) {
	// Bubbles fake the monotonic clock and not this one.
	lock.SetBootTime(func() time.Duration { return 0 })
	os.Exit(m.Run())
}

// A world is a store with one backend on it, inside a synctest bubble.
type world struct {
	*testing.T
	store *memory.Store
	b     *lock.Backend
}

// bubble runs a rule's test on a fake clock. The bubble itself fails if a
// goroutine is left at the end.
func bubble(t *testing.T, opts *lock.Options, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: memory.NewStore()}
		w.b = w.backend(memory.New(w.store, nil), opts)
		test(w)
	})
}

func (w *world) backend(d drivers.Driver, opts *lock.Options) *lock.Backend {
	w.Helper()
	if opts == nil {
		opts = &lock.Options{TTL: ttl}
	}
	b, err := lock.New(d, opts)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = b.Close() })
	return b
}

// other is a second process' driver on the same store.
func (w *world) other() *memory.Driver { return memory.New(w.store, nil) }

func (w *world) acquire() lock.Lease {
	w.Helper()
	l, err := w.b.Lock("job", nil).Acquire(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return l
}

// rival takes the name past the engine, as a crashed process that never
// renews.
func (w *world) rival(owner string) error {
	_, err := w.other().TryAcquire(context.Background(), drivers.Request{Name: "job", Owner: owner, TTL: ttl})
	return err
}

func (w *world) isFree() bool {
	_, err := w.other().Inspect(context.Background(), "job")
	return errors.Is(err, lock.ErrNotHeld)
}

func (w *world) is(err, target error) {
	w.Helper()
	if !errors.Is(err, target) {
		w.Fatalf("got error %v, want one that matches %q", err, target)
	}
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// on is a hook that acts on one kind of call only.
func on(op memory.Op, hook func(ctx context.Context) error) func(context.Context, memory.Call) error {
	return func(ctx context.Context, c memory.Call) error {
		if c.Op != op {
			return nil
		}
		return hook(ctx)
	}
}

// hang is a network that answers nothing.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return drivers.Unavailable(ctx.Err())
}

// calls counts the exchanges with a store.
type calls struct {
	mu sync.Mutex
	n  map[memory.Op]int
}

func (c *calls) hook(_ context.Context, call memory.Call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[memory.Op]int{}
	}
	c.n[call.Op]++
	return nil
}

func (c *calls) of(op memory.Op) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[op]
}

// plain hides every optional interface of a driver.
type plain struct{ drivers.Driver }

// promising claims what it is told to.
type promising struct {
	drivers.Driver
	g lock.Guarantee
}

func (p promising) Guarantees() lock.Guarantee { return p.g }
