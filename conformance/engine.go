package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers"
)

var engineChecks = []Check{
	{ID: "basic/engine-names", Promise: "basic", run: engineNames,
		Rule: "Names of 1 to 1024 bytes are accepted and all others refused with *ConfigError"},
	{ID: "basic/engine-lease", Promise: "basic", run: engineLease, slow: true,
		Rule: "A lease of package lock is kept beyond twice its TTL, excludes others, and is free after its release"},
	{ID: "basic/engine-wait", Promise: "basic", run: engineWait,
		Rule: "A wait of package lock ends with the lease after the holder's release, or with its context and nothing left behind"},
	{ID: "basic/engine-contention", Promise: "basic", run: engineContention,
		Rule: "Under contention through package lock no two leases are valid at once and no update made under them is lost"},
}

var engineFencingChecks = []Check{
	{ID: "fencing/engine-tokens", Promise: "fencing", run: engineTokens,
		Rule: "Tokens of package lock's leases are unique and rise in the order of holders under contention"},
}

// backend makes a backend of a client of its own; a client serves one only.
func (e *env) backend(ctx context.Context, ttl time.Duration) (*lock.Backend, error) {
	d, err := openOne(ctx, e.Config)
	if err != nil {
		return nil, fmt.Errorf("Open: %w", err)
	}
	b, err := lock.New(d, &lock.Options{TTL: ttl})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	e.atEnd(func(context.Context) { _ = b.Close() })
	return b, nil
}

func (e *env) backends(ctx context.Context, n int, ttl time.Duration) ([]*lock.Backend, error) {
	var all []*lock.Backend
	for range n {
		b, err := e.backend(ctx, ttl)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func engineNames(ctx context.Context, e *env) error {
	b, err := e.backend(ctx, e.longTTL)
	if err != nil {
		return err
	}
	for _, bad := range []string{"", strings.Repeat("x", drivers.MaxName+1)} {
		if _, err := b.Lock(bad, nil).TryAcquire(ctx); !isConfig(err) {
			return fmt.Errorf("a name of %d bytes: %w", len(bad), orNil(err))
		}
	}
	longest := e.name()
	longest += strings.Repeat("x", drivers.MaxName-len(longest))
	for _, good := range []string{e.name(), longest} {
		l, err := b.Lock(good, nil).TryAcquire(ctx)
		if err != nil {
			return fmt.Errorf("a name of %d bytes: %w", len(good), err)
		}
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// engineLease lets package lock renew a lease while another client looks for a
// chance to take it.
func engineLease(ctx context.Context, e *env) error {
	all, err := e.backends(ctx, 2, e.ttl)
	if err != nil {
		return err
	}
	name := e.name()
	l, err := all[0].Lock(name, nil).TryAcquire(ctx)
	if err != nil {
		return err
	}
	other := all[1].Lock(name, nil)
	for end := time.Now().Add(e.ttl * 5 / 2); time.Now().Before(end); pause(ctx, e.pollEvery()) {
		got, err := other.TryAcquire(ctx)
		switch {
		case errors.Is(l.Err(), drivers.ErrLost):
			return tooSlow("the lease was lost: %v", l.Err())
		case err == nil:
			return errors.Join(errors.New("another client was granted it while the lease is valid"), got.Release(ctx))
		case !isHeld(err):
			return fmt.Errorf("another client was refused with %w", err)
		}
	}
	if err := (leased{l}).release(ctx); err != nil {
		return fmt.Errorf("Release: %w", err)
	}
	next, err := other.TryAcquire(ctx)
	if err != nil {
		return fmt.Errorf("after the release: %w", err)
	}
	return next.Release(ctx)
}

func engineWait(ctx context.Context, e *env) error {
	all, err := e.backends(ctx, 2, e.longTTL)
	if err != nil {
		return err
	}
	name := e.name()
	l, err := all[0].Lock(name, nil).TryAcquire(ctx)
	if err != nil {
		return err
	}
	other := all[1].Lock(name, nil)
	short, cancel := context.WithTimeout(ctx, 2*settle)
	defer cancel()
	if _, err := other.Acquire(short); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("a wait that its context ended returned %w", orNil(err))
	}
	return handOver(ctx, l, other)
}

// handOver releases a lease while another client waits for it.
func handOver(ctx context.Context, l lock.Lease, other lock.Lock) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return together(2, func(i int) error {
		if i == 0 {
			pause(ctx, 2*settle)
			return l.Release(ctx)
		}
		next, err := other.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("a wait beside a release: %w", err)
		}
		return next.Release(ctx)
	})
}

// A leased is a lease of the engine in a contest.
type leased struct{ lock.Lease }

func (l leased) valid() bool { return l.Err() == nil }

func (l leased) token() drivers.Token {
	if f, ok := l.Lease.(lock.Fenced); ok {
		return f.Token()
	}
	return 0
}

func (l leased) release(ctx context.Context) error {
	err := l.Release(ctx)
	if errors.Is(err, drivers.ErrLost) {
		return tooSlow("the lease was lost: %v", err)
	}
	return err
}

// acquirer takes leases of either kind in a contest; every second worker waits,
// the others try again.
func acquirer[L lock.Lease](locks []lock.Acquirer[L]) func(context.Context, int) (holding, error) {
	return func(ctx context.Context, worker int) (holding, error) {
		l := locks[worker%len(locks)]
		acquire := l.TryAcquire
		if worker%2 == 1 {
			acquire = l.Acquire
		}
		lease, err := acquire(ctx)
		return leased{lease}, err
	}
}

func engineContention(ctx context.Context, e *env) error {
	all, err := e.backends(ctx, 3, e.longTTL)
	if err != nil {
		return err
	}
	c := newContest(e.name())
	var locks []lock.Lock
	for _, b := range all {
		locks = append(locks, b.Lock(c.name, nil))
	}
	c.take = acquirer(locks)
	return c.noUpdateLost(ctx)
}

func engineTokens(ctx context.Context, e *env) error {
	all, err := e.backends(ctx, 3, e.longTTL)
	if err != nil {
		return err
	}
	c := newContest(e.name())
	var locks []lock.FencedLock
	for _, b := range all {
		l, err := b.FencedLock(c.name, nil)
		if err != nil {
			return fmt.Errorf("FencedLock: %w", err)
		}
		locks = append(locks, l)
	}
	c.take = acquirer(locks)
	return c.tokensInOrder(ctx)
}

// refusesFencedLock sees that package lock sells no tokens that the driver does
// not promise.
func (e *env) refusesFencedLock(ctx context.Context) error {
	b, err := e.backend(ctx, e.ttl)
	if err != nil {
		return err
	}
	var unmet *drivers.UnmetError
	if _, err := b.FencedLock(e.name(), nil); !errors.As(err, &unmet) {
		return fmt.Errorf("fencing is not promised but FencedLock returned %w", orNil(err))
	}
	return nil
}
