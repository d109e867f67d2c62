package etcdlease

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkit/lock/drivers"
)

// defaultPoll serves requests without Poll.
const defaultPoll = time.Second

// These are trouble that may pass: who waits may queue again.
var (
	errPlaceLost = errors.New("the waiter's key is gone from the queue")
	errSilence   = errors.New("the waiter's lease could not be renewed")
)

// Acquire implements drivers.Waiter.
func (d *Driver) Acquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.begin(ctx, r); err != nil {
		return drivers.Grant{}, err
	}
	defer d.calls.Done()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	g, err := d.wait(waiting, r)
	if err != nil && ctx.Err() != nil {
		return drivers.Grant{}, ctx.Err()
	}
	return g, d.explain(ctx, err)
}

// wait queues and returns when our key is the first. If it gives up, the
// revocation of the lease takes the key out of the queue.
func (d *Driver) wait(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	l, p, err := d.place(ctx, r, d.putBehind)
	if err != nil {
		return drivers.Grant{}, err
	}
	if p.revision == 0 {
		return drivers.Grant{}, d.refuse(ctx, l, p)
	}
	if p.ahead != nil {
		err = d.standInLine(ctx, r, l, p)
	}
	if err == nil {
		err = d.leases.confirm(ctx, l)
	}
	if err != nil {
		d.abandon(l)
		return drivers.Grant{}, err
	}
	return granted(r, l, p), nil
}

// standInLine returns when nobody is before us any more.
func (d *Driver) standInLine(ctx context.Context, r drivers.Request, l *lease, p place) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &waiter{Driver: d, request: r, revision: p.revision, died: d.leases.keep(ctx, l)}
	for ahead := p.ahead; ahead != nil && err == nil; {
		ahead, err = w.outwait(ctx, ahead)
	}
	return err
}

// A waiter is a key in a queue.
type waiter struct {
	*Driver
	request  drivers.Request
	revision int64        // that created the key
	died     <-chan error // tells that its lease has ended
}

// outwait returns who is before us when that is no longer ahead, or nil.
func (w *waiter) outwait(ctx context.Context, ahead *mvccpb.KeyValue) (*mvccpb.KeyValue, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	poll := w.request.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	hints := w.watch(ctx, string(ahead.Key))
	timer := time.NewTicker(poll)
	defer timer.Stop()
	for {
		select {
		case <-hints:
		case <-timer.C:
		case err := <-w.died:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		now, err := w.look(ctx, w.request, w.revision)
		switch {
		case errors.Is(err, errPlaceLost), err != nil && !transient(err):
			return nil, err
		case err != nil: // the next poll may be answered
		case now == nil || now.CreateRevision != ahead.CreateRevision:
			return now, nil
		}
	}
}

// watch hints when the watch of a key has begun, for the key may have gone
// before, and when the key goes. It watches from the present revision on: etcd
// serves a watch of past ones only every 100 ms.
func (d *Driver) watch(ctx context.Context, key string) <-chan struct{} {
	hints := make(chan struct{}, 1)
	d.calls.Go(func() {
		for ctx.Err() == nil {
			events := d.client.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
			for range events {
				select {
				case hints <- struct{}{}:
				default:
				}
			}
			// The watch was cancelled; until there is a new one, polls must do.
			select {
			case <-ctx.Done():
			case <-time.After(defaultPoll):
			}
		}
	})
	return hints
}

// keep keeps the lease of a waiter alive until ctx ends, or tells that it has
// ended.
func (s *stock) keep(ctx context.Context, l *lease) <-chan error {
	died := make(chan error, 1)
	go func() {
		timer := time.NewTicker(l.ttl / 3)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			if err := s.keepOnce(ctx, l); err != nil {
				died <- err
				return
			}
		}
	}()
	return died
}

// keepOnce gives a slow server more time than the lease has: who waits believes
// nothing in the meantime, and may still find its place there.
func (s *stock) keepOnce(ctx context.Context, l *lease) error {
	ctx, cancel := context.WithTimeout(ctx, 2*l.ttl-l.age())
	defer cancel()
	_, err := s.renew(ctx, l)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return errPlaceLost
	case l.age() >= 2*l.ttl:
		return errSilence
	}
	return nil
}

// confirm renews the lease of a grant that would begin with less than half of
// its time.
func (s *stock) confirm(ctx context.Context, l *lease) error {
	if l.age() < l.ttl/2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	_, err := s.renew(ctx, l)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return errPlaceLost
	}
	return err
}
