package conformance_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
)

// A bare driver as a third party would write it first: no tokens, no queue, no
// optional interface.
type bare struct {
	mu     sync.Mutex
	holds  map[string]bareHold
	graves map[string]bool // owners that released nothing: their request may be late
}

type bareHold struct {
	owner string
	until time.Time
}

func (b *bare) Guarantees() drivers.Guarantee { return 0 }

func (b *bare) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := drivers.CheckTTL(r.TTL, time.Millisecond, drivers.MaxTTL); err != nil {
		return drivers.Grant{}, err
	}
	if ctx.Err() != nil {
		return drivers.Grant{}, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case b.graves[r.Owner]:
		return drivers.Grant{}, drivers.Lost(drivers.Taken, nil)
	case now.Before(b.holds[r.Name].until):
		return drivers.Grant{}, &drivers.HeldError{}
	}
	b.holds[r.Name] = bareHold{r.Owner, now.Add(r.TTL)}
	return drivers.Grant{Name: r.Name, Owner: r.Owner, TTL: r.TTL}, nil
}

func (b *bare) Renew(_ context.Context, g drivers.Grant) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.has(g) {
		return 0, drivers.Lost(drivers.Taken, nil)
	}
	b.holds[g.Name] = bareHold{g.Owner, time.Now().Add(g.TTL)}
	return g.TTL, nil
}

func (b *bare) Release(_ context.Context, g drivers.Grant) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.has(g) {
		b.graves[g.Owner] = true
		return drivers.Lost(drivers.Taken, nil)
	}
	delete(b.holds, g.Name)
	return nil
}

func (b *bare) has(g drivers.Grant) bool {
	h := b.holds[g.Name]
	return h.owner == g.Owner && time.Now().Before(h.until)
}

// bareClient is what needs closing.
type bareClient struct {
	*bare
	closed context.Context
	close  context.CancelFunc
}

func (c bareClient) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if c.closed.Err() != nil {
		return drivers.Grant{}, drivers.ErrClosed
	}
	return c.bare.TryAcquire(ctx, r)
}

func (c bareClient) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if c.closed.Err() != nil {
		return 0, drivers.ErrClosed
	}
	return c.bare.Renew(ctx, g)
}

func (c bareClient) Release(ctx context.Context, g drivers.Grant) error {
	if c.closed.Err() != nil {
		return drivers.ErrClosed
	}
	return c.bare.Release(ctx, g)
}

func (c bareClient) Close() error { c.close(); return nil }

// All that a third party's test needs.
func TestAThirdPartysDriver(t *testing.T) {
	service := &bare{holds: map[string]bareHold{}, graves: map[string]bool{}}
	conformance.Run(t, conformance.Config{
		Name: "bare",
		TTL:  300 * time.Millisecond,
		Open: func(context.Context) (drivers.Driver, error) {
			closed, cancel := context.WithCancel(context.Background())
			return bareClient{service, closed, cancel}, nil
		},
	})
}
