package zkelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

const defaultPoll = time.Second

// Acquire queues and waits for its turn. It keeps its place through a lost
// connection, for as long as the session lasts, and gives up when nothing was
// answered for the session's time.
func (d *Driver) Acquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.vet(ctx, r); err != nil {
		return drivers.Grant{}, err
	}
	p, err := d.enqueueAnyway(ctx, r)
	if err != nil {
		return drivers.Grant{}, d.fault(err)
	}
	if !p.alone {
		if err := d.wait(ctx, p, cmp.Or(r.Poll, defaultPoll)); err != nil {
			d.bury(p.name, p.owner)
			return drivers.Grant{}, d.fault(err)
		}
	}
	return d.grant(p)
}

// wait returns nil when the place is the first of its queue.
func (d *Driver) wait(ctx context.Context, p *place, poll time.Duration) error {
	told := false
	for {
		ahead, err := ask(ctx, p, func(ctx context.Context) (string, error) { return d.turn(ctx, p, told) })
		if err == nil && ahead == "" {
			return nil
		}
		if err == nil {
			told, err = d.waitGone(ctx, p, ahead, poll)
		}
		if err = d.bear(ctx, p, err); err != nil {
			return err
		}
	}
}

// ask puts a waiter's question, and keeps in mind since when nothing has been
// answered. A question that hangs is not answered either.
func ask[T any](ctx context.Context, p *place, question func(context.Context) (T, error)) (T, error) {
	if p.asking.IsZero() {
		p.asking = time.Now()
	}
	bounded, cancel := context.WithDeadline(ctx, p.asking.Add(p.session.timeout()))
	defer cancel()
	answer, err := question(bounded)
	switch {
	case err == nil:
		p.asking = time.Time{}
	case bounded.Err() != nil && ctx.Err() == nil:
		err = drivers.Unavailable(errSilent)
	}
	return answer, err
}

// unanswered reports whether nothing was answered for as long as a session
// lasts: the place is gone then, or its driver is the last to hear of it.
func (p *place) unanswered() bool {
	return !p.asking.IsZero() && time.Since(p.asking) >= p.session.timeout()
}

// errSilent is why a wait came to nothing though its session has not ended for
// all the driver knows.
var errSilent = errors.New("nothing was answered for the session's time")

// bear returns nil if the waiting may go on after err: a lost connection is
// doubt, a lost session is the end, and so is too long a silence.
func (d *Driver) bear(ctx context.Context, p *place, err error) error {
	switch {
	case p.session != d.dialer.session():
		return drivers.Unavailable(errSessionEnded)
	case errors.Is(err, errRemoved):
		return drivers.Unavailable(err)
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, errSilent) || !errors.Is(d.fault(err), drivers.ErrUnavailable):
		return err
	case p.unanswered():
		return drivers.Unavailable(fmt.Errorf("%w: %w", errSilent, err))
	}
	return sleep(ctx, firstPause)
}

// turn returns the path of the node ahead, or an empty one if the place is the
// first and was there when turn began. If it was told that the node ahead went
// it asks both at once, expecting to be the first.
func (d *Driver) turn(ctx context.Context, p *place, told bool) (ahead string, err error) {
	var answer <-chan proved
	if told {
		answer = d.proveSoon(ctx, p.path)
	}
	q, err := d.list(ctx, p.name)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return "", err
	}
	switch i := q.index(p.path); {
	case i < 0:
		return "", errRemoved
	case i > 0:
		return q.nodes[i-1].path, nil
	}
	if answer == nil {
		answer = d.proveSoon(ctx, p.path)
	}
	a := <-answer
	if errors.Is(a.err, zk.ErrNoNode) {
		return "", errRemoved
	}
	p.since = a.sent
	return "", a.err
}

// errRemoved is why a wait came to nothing though its session goes on.
var errRemoved = errors.New("its node in the queue was removed")

type proved struct {
	sent time.Time
	err  error
}

func (d *Driver) proveSoon(ctx context.Context, nodePath string) <-chan proved {
	answer := make(chan proved, 1)
	sent := time.Now()
	go func() { answer <- proved{sent, d.prover.prove(ctx, nodePath)} }()
	return answer
}

// waitGone returns when the node ahead is gone. told is true if the service
// said so.
func (d *Driver) waitGone(ctx context.Context, p *place, ahead string, poll time.Duration) (told bool, err error) {
	w := d.watch(ahead)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	listen := time.NewTicker(beatPause(p.session))
	defer listen.Stop()
	for {
		select {
		case <-w.gone:
			return w.err == nil || errors.Is(w.err, zk.ErrNoNode), ignoreNoNode(w.err)
		case <-ticker.C:
			there, err := ask(ctx, p, func(ctx context.Context) (bool, error) { return d.exists(ctx, ahead) })
			if err != nil || !there {
				return false, err
			}
		case <-listen.C: // the poll may be much longer than the session
			if d.silence() >= p.session.timeout() {
				return false, drivers.Unavailable(errSilent)
			}
		case <-p.session.ended:
			return false, drivers.Unavailable(errSessionEnded)
		case <-d.ctx.Done():
			return false, drivers.ErrClosed
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func ignoreNoNode(err error) error {
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	return err
}

func (d *Driver) exists(ctx context.Context, at string) (bool, error) {
	return call(ctx, func() (bool, error) {
		there, _, err := d.conn.Exists(at)
		return there, err
	})
}

// A watch is this driver's one watch on a node. The client can't withdraw a
// watch: were each waiter to set its own, those that gave up would pile up
// while the node lives.
type watch struct {
	gone chan struct{} // closed when the node went or changed, or err is set
	err  error
}

func (d *Driver) watch(at string) *watch {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.watches[at]; w != nil {
		return w
	}
	w := &watch{gone: make(chan struct{})}
	if d.closed {
		w.err = drivers.ErrClosed
		close(w.gone)
		return w
	}
	d.watches[at] = w
	d.work.Go(func() {
		w.err = d.await(at)
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watches, at)
		close(w.gone)
	})
	return w
}

// await returns nil at the first event on a node.
func (d *Driver) await(at string) error {
	_, _, events, err := d.conn.GetW(at) // ExistsW would leave a watch on a node that is gone
	if err != nil {
		return err
	}
	select {
	case <-events:
		return nil
	case <-d.ctx.Done():
		return drivers.ErrClosed
	}
}
