package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lockkit/lock/drivers"
)

// Between the tries of a reclaim.
const (
	firstReclaim = 20 * time.Millisecond
	lastReclaim  = time.Second
	minReclaim   = 10 * time.Second // how long it is tried at least
)

// reclaim makes sure that the service keeps nothing for an owner whose request
// had no clear answer, or whose lease ended without one. It runs in the
// background, free of the caller's context: a time-out is not a "no".
func (b *Backend) reclaim(g drivers.Grant) {
	b.running.Go(func() {
		tries, err := b.reclaimUntil(g)
		b.opts.Trace.reclaimed(ReclaimedInfo{Name: g.Name, Owner: g.Owner, Tries: tries, Err: err})
	})
}

func (b *Backend) reclaimUntil(g drivers.Grant) (tries int, err error) {
	ttl := max(g.TTL, b.opts.TTL)
	ctx, cancel := context.WithTimeout(b.work, max(2*ttl, minReclaim))
	defer cancel()
	for pause := firstReclaim; ; pause = min(2*pause, lastReclaim) {
		tries++
		if err = b.releaseOnce(ctx, g); err == nil {
			return tries, nil
		}
		select {
		case <-ctx.Done():
			return tries, err
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

func (b *Backend) releaseOnce(ctx context.Context, g drivers.Grant) error {
	ctx, cancel := context.WithTimeout(ctx, b.opts.releaseBound(max(g.TTL, b.opts.TTL)))
	defer cancel()
	err := b.driver.Release(ctx, g)
	if errors.Is(err, ErrLost) {
		return nil // there was nothing to end
	}
	return err
}
