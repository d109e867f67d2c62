package zkelection

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

const anyVersion = -1

// The numbers in the names of nodes end at 2³¹ − 1. Some way before, the queue
// is drained and its parent removed, and a new parent counts from zero.
var lastNumber int32 = 1<<31 - 1<<20

var errUsedUp = errors.New("the numbers of the queue are used up: it starts anew when it is empty")

// enqueue puts a node at the end of the queue, if the version of its parent is
// the one given. It writes to the parent in the same transaction: the answer
// tells the transaction's number and how many children there are, and the
// parent's version counts the nodes that were ever queued.
//
// If the outcome is not clear the node is looked for and removed in the
// background, also after ctx ended.
func (d *Driver) enqueue(ctx context.Context, r drivers.Request, version int32) (*place, error) {
	p := &place{name: r.Name, node: node{owner: r.Owner}, session: d.dialer.session()}
	answer, err := d.depart(p, func() error { return d.create(p, r.Note, version) })
	if err != nil {
		return nil, err
	}
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case refused(err):
		return nil, err
	case err != nil:
	case p.session != d.dialer.session():
		err = drivers.Unavailable(errSessionEnded)
	case p.seq >= lastNumber:
		err = drivers.Unavailable(errUsedUp)
	default:
		return p, nil
	}
	burial := d.bury(r.Name, r.Owner)
	if errors.Is(err, errUsedUp) {
		_ = burial.waitFor(ctx, p) // the next attempt shall find the queue without it
	}
	return nil, err
}

// A flight is a request to create a node that has not ended.
type flight struct {
	name   string
	landed chan struct{}
}

// depart starts a request to create a node, unless its owner was released
// before. The request is kept in mind until it has ended, which may be long
// after its caller went away.
func (d *Driver) depart(p *place, create func() error) (<-chan error, error) {
	f, answer := &flight{p.name, make(chan struct{})}, make(chan error, 1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, drivers.ErrClosed
	}
	if _, late := d.dead[p.owner]; late {
		return nil, drivers.ErrReleased
	}
	d.flights[p.owner] = f
	d.work.Go(func() {
		err := create()
		d.land(p, f, err)
		answer <- err
	})
	return answer, nil
}

func (d *Driver) land(p *place, f *flight, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.places[p.owner] = p
	}
	delete(d.flights, p.owner)
	close(f.landed)
}

func (d *Driver) create(p *place, note string, version int32) error {
	p.since = time.Now()
	answers, err := d.conn.Multi(
		&zk.CreateRequest{Path: d.nodePath(p.name, p.owner), Data: []byte(note), Acl: d.acl, Flags: zk.FlagEphemeralSequential},
		&zk.SetDataRequest{Path: d.lockPath(p.name), Version: version},
	)
	if err != nil {
		return err
	}
	if len(answers) != 2 || answers[1].Stat == nil {
		return errors.New("a transaction was not answered in full")
	}
	created, stat := answers[0].String, answers[1].Stat
	made, ok := parseNode(path.Dir(created), path.Base(created))
	if !ok || made.owner != p.owner {
		return fmt.Errorf("the server made %q, which is no place in a queue", created)
	}
	p.node = made
	p.zxid, p.version, p.alone = stat.Mzxid, stat.Version, stat.NumChildren == 1
	return nil
}

// enqueueAnyway is enqueue whatever the version, and whether or not there is a
// parent.
func (d *Driver) enqueueAnyway(ctx context.Context, r drivers.Request) (*place, error) {
	for {
		p, err := d.enqueue(ctx, r, anyVersion)
		if !errors.Is(err, zk.ErrNoNode) {
			return p, err
		}
		if err := d.makeParents(ctx, r.Name); err != nil {
			return nil, err
		}
	}
}

// enqueueFirst puts a node into the queue only if it will be the first. It
// writes nothing to a queue that has a holder.
func (d *Driver) enqueueFirst(ctx context.Context, r drivers.Request) (*place, error) {
	version, known := d.takeIdle(r.Name)
	for {
		var err error
		if !known {
			if version, err = d.lookFree(ctx, r.Name); err != nil {
				return nil, err
			}
		}
		p, err := d.enqueue(ctx, r, version)
		if !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
			return p, err
		}
		known = false
	}
}

// lookFree returns the version of the parent at which the queue was empty, or
// a *HeldError.
func (d *Driver) lookFree(ctx context.Context, name string) (int32, error) {
	q, err := d.list(ctx, name)
	if err == nil && len(q.nodes) > 0 {
		q, err = d.listNow(ctx, name) // "held" must not be old news
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return 0, d.makeParents(ctx, name)
	case err != nil:
		return 0, err
	case len(q.nodes) > 0:
		return 0, d.heldBy(ctx, q.nodes[0])
	}
	return q.version, nil
}

// heldBy makes a *HeldError, or returns why it can't.
func (d *Driver) heldBy(ctx context.Context, first node) error {
	h, err := d.holder(ctx, first)
	if err != nil && !refused(err) {
		return err
	}
	return &drivers.HeldError{Holder: h}
}
