package zkelection

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

// A burial is the removal of whatever node an owner has. A session may live
// for as long as its process, and so would a node that was left in it: so a
// burial goes on until the service has answered, whoever stopped waiting.
type burial struct {
	done chan struct{}
	err  error // nil: a node was removed; ErrLost: there was none
}

// deadFor is how long an owner is remembered whose requests come to nothing.
const deadFor = time.Minute

// bury starts the burial, or joins the one that is under way.
func (d *Driver) bury(name, owner string) *burial {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.buryLocked(name, owner)
}

func (d *Driver) buryLocked(name, owner string) *burial {
	if b := d.burials[owner]; b != nil {
		return b
	}
	b := &burial{done: make(chan struct{}), err: drivers.ErrClosed}
	if d.closed {
		close(b.done)
		return b
	}
	d.burials[owner], d.dead[owner] = b, time.Now()
	f := d.flights[owner]
	d.work.Go(func() {
		if f == nil || await(d.ctx, f.landed) == nil {
			b.err = d.removeUntilClear(name, owner)
		}
		d.buried(owner, b)
	})
	return b
}

func (d *Driver) buried(owner string, b *burial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.places[owner]; p != nil {
		d.endLocked(p, drivers.Taken)
	}
	delete(d.burials, owner)
	close(b.done)
}

// await waits for a channel to be closed.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *burial) wait(ctx context.Context) error {
	if err := await(ctx, b.done); err != nil {
		return err
	}
	return b.err
}

// waitFor is wait for someone who acquires, with patience for no longer than a
// session lasts: the burial goes on without.
func (b *burial) waitFor(ctx context.Context, p *place) error {
	_, err := ask(ctx, p, func(ctx context.Context) (struct{}, error) { return struct{}{}, b.wait(ctx) })
	return err
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

func (d *Driver) removeUntilClear(name, owner string) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := d.classify(d.remove(name, owner))
		if !errors.Is(err, drivers.ErrUnavailable) {
			return err
		}
		if sleep(d.ctx, pause) != nil {
			return drivers.ErrClosed
		}
	}
}

// remove finds the nodes of an owner and deletes them. The search comes after
// sync, and what this session sent before is done or refused by then: the
// service closes a session's old connection before it serves a new one, and
// refuses what is still on its way through another server.
func (d *Driver) remove(name, owner string) error {
	q, err := d.listNow(d.ctx, name)
	if errors.Is(err, zk.ErrNoNode) {
		return drivers.Lost(drivers.Taken, nil)
	}
	if err != nil {
		return err
	}
	err = drivers.Lost(drivers.Taken, nil)
	for _, n := range q.nodes {
		if n.owner != owner {
			continue
		}
		if err = d.delete(d.ctx, n.path); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		err = nil
		if n.seq >= lastNumber {
			_ = d.delete(d.ctx, path.Dir(n.path)) // refused while it has children
		}
	}
	return err
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
