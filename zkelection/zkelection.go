// Package zkelection is the driver for zk:// URLs: locks in a ZooKeeper
// ensemble.
//
// A holder that stops, or is cut off, for longer than its session's time-out
// loses its locks, and does not know it before it runs again: no lock service
// can help that. Stores that check the fencing token refuse such a holder.
// Neither a lost disk of a majority of the servers nor a server with
// forceSync=no is guarded against.
//
// # URL
//
//	zk://[user:password@]host[:2181][,host…][/chroot/path][?lock_prefix=lock]
//
// With a user all nodes are made so that only that user may touch them; all
// who share a lock must be the same user. Without one they are open to anyone
// who reaches the servers. A missing chroot is made.
//
// lock_ttl is the session's time-out and is fixed when the driver is opened.
// The servers accept from 2 to 20 ticks (4 s to 40 s as they come): a shorter
// one is lengthened, a longer one refused. Choose three ticks or more; see
// below.
//
// [New] takes a *zk.Conn of your own, for TLS and the like, if it was connected
// through a [Dialer].
//
// # Promises
//
// Fencing: the token is the zxid of the transaction that made the holder's
// node (its czxid), which rises for as long as a majority of the servers keep
// their disks. Fair: who queued first is served first. Prompt: a waiter is
// woken when the one ahead of it is gone. Not Durable: whether the servers
// flush their log is not read yet.
//
// # How it works
//
// Each request makes an ephemeral node
// /PREFIX/NAME/lock-OWNER-NUMBER; the lowest number holds. OWNER is fresh for
// each request, so that a node whose creation was not answered is found again
// and removed. The transaction that makes the node also writes to its parent:
// its answer tells the token and whether anyone else is queued. An attempt that
// does not wait makes its transaction conditional on the parent's version and
// leaves nothing when it is refused.
//
// A waiter watches the node just ahead of its own, and no other, so that a
// release wakes one waiter. What is no node of this kind is ignored. Parents
// are containers, which the server removes when they have been empty for a
// while.
//
// A driver has one session. A renewal is a transaction that checks the node
// and changes nothing: only a majority can answer it. Renewals that come
// together share one. A lost connection is doubt, the end of a session is the
// end of all its grants: a node that was made in another session than the
// present one never counts. A grant that is not renewed within the session's
// time is removed by the driver, because the session itself goes on.
//
// Release deletes the node by its path, which no successor shares. Without the
// path it finds the node by its owner, after a transaction that changes nothing,
// so that no old state is read (the service's sync does not see to that where
// the server is the leader). If the answer is lost the driver goes on in the
// background until it has one. No request of the same owner can arrive later:
// the driver waits for those it has sent, a server closes the old connection of
// a session before it serves a new one, and the leader refuses a session's
// requests through a server that it has left.
//
// # What can go wrong
//
// A follower that dies takes with it what it had not yet told the leader of
// the sessions it served, up to half a tick. Therefore a lease ends a quarter
// of the session's time before the session may (Grant.Margin), and the driver
// sends a small read twelve times in that time. For sessions shorter than three
// ticks this does not suffice in the worst case.
//
// The session ends, because no server was reached in time: all grants of the
// driver are lost at once. Long stops of the process do this too.
//
// The number in the names of nodes ends at 2³¹: shortly before, requests are
// refused as unavailable until the queue is empty, and its parent is made anew.
// The token is not that number and goes on rising.
//
// A server grants a shorter time-out at a reconnection than the one before did:
// all grants of the driver are lost at once, and their nodes removed. Give all
// servers the same bounds. A longer one changes nothing.
//
// An operator deletes a node: the next renewal says so.
//
// A server stops without closing its connections: the driver goes to another
// one after half the session's time. No server can be reached: after the first
// round of all the client library pauses for a second between rounds, which is
// much for a session of a few seconds. A waiter gives up when nothing was
// answered for the session's time; its node goes with the session, or is
// removed when a server answers again.
//
// A release is sent through another driver than the acquire: it removes what it
// finds, but can't stop a request of the other session that is still on its
// way.
//
// # Cost
//
// One session and one connection for each driver. An acquire that need not
// wait: one transaction, if the name was last held through this driver or if it
// queues at once, else a read before it, and one transaction for each missing
// parent. A hand-off: one event, then one transaction and one read together. A
// release: one transaction. A renewal: one transaction for up to 128 locks.
package zkelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

const (
	defaultPrefix = "lock"
	defaultTTL    = 15 * time.Second
	openBound     = 5 * time.Second // for an ensemble that does not answer
	closeBound    = 3 * time.Second
)

// Options configures a Driver. Nil means the defaults.
type Options struct {
	// Prefix is the path, below Chroot, under which all locks are; the
	// default is "lock".
	Prefix string

	// Chroot is a path that goes before all others.
	Chroot string

	// TTL is what the session's time-out must be at least. Zero takes the
	// connection's as it is.
	TTL time.Duration

	// ACL is given to all nodes; the default lets anyone do anything. All who
	// share a lock must be able to create, read, write and delete.
	ACL []zk.ACL
}

// A Driver keeps locks in a ZooKeeper ensemble through one session.
type Driver struct {
	conn     *zk.Conn
	dialer   *Dialer
	ownsConn bool
	servers  []string
	base     string
	acl      []zk.ACL
	prover   *prover

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // begun under mu while not closed

	mu      sync.Mutex
	closed  bool
	places  map[string]*place    // that have a node, by owner
	flights map[string]*flight   // by owner
	burials map[string]*burial   // by owner
	dead    map[string]time.Time // since when an owner is buried
	watches map[string]*watch    // by path
	idle    map[string]int32     // by name: see setIdle
	heard   time.Time            // when a beat was last answered
	lost    func(owner string, err error)
}

// New makes a Driver that uses the caller's connection and never closes it.
// The dialer must be the one that the connection was made with, and serve no
// other:
//
//	dialer := zkelection.NewDialer(nil)
//	conn, events, err := zk.Connect(servers, 15*time.Second, zk.WithDialer(dialer.Dial))
//	…
//	driver, err := zkelection.New(ctx, conn, dialer, nil)
//
// It returns a *drivers.ConfigError if the settings won't do, and
// drivers.ErrUnavailable if no server answers, within five seconds also if ctx
// has no end. Events of the connection are left to the caller.
func New(ctx context.Context, conn *zk.Conn, dialer *Dialer, opts *Options) (*Driver, error) {
	if conn == nil || dialer == nil {
		return nil, &drivers.ConfigError{
			Key: "dialer", Problem: "is missing",
			Fix: "connect by zk.Connect(servers, ttl, zk.WithDialer(dialer.Dial)) with a dialer of zkelection.NewDialer",
		}
	}
	bounded, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	d, err := start(bounded, &Driver{conn: conn, dialer: dialer}, cmp.Or(opts, &Options{}))
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = drivers.Unavailable(fmt.Errorf("zookeeper %s does not answer: %w", conn.Server(), err))
	}
	return d, err
}

// start completes a driver and lets it run, if the service is as it must be.
func start(ctx context.Context, d *Driver, o *Options) (*Driver, error) {
	var err error
	if d.base, err = basePath(o.Chroot, cmp.Or(o.Prefix, defaultPrefix)); err != nil {
		return nil, err
	}
	if d.acl = o.ACL; len(d.acl) == 0 {
		d.acl = zk.WorldACL(zk.PermAll)
	}
	d.prover = &prover{conn: d.conn}
	d.places, d.idle, d.dead = map[string]*place{}, map[string]int32{}, map[string]time.Time{}
	d.flights, d.burials, d.watches = map[string]*flight{}, map[string]*burial{}, map[string]*watch{}
	d.ctx, d.stop = context.WithCancel(context.Background())
	if err := d.prove(ctx, o.TTL); err != nil {
		d.stop()
		return nil, err
	}
	d.hear()
	d.work.Go(d.keep)
	return d, nil
}

// prove makes sure that a majority answers, that the nodes may be used, and
// that the session is as long as it must be. An ensemble that is changing its
// leader closes connections: that alone is no reason to give up.
func (d *Driver) prove(ctx context.Context, ttl time.Duration) error {
	err := run(ctx, d.probe)
	for errors.Is(err, zk.ErrConnectionClosed) && sleep(ctx, firstPause) == nil {
		err = run(ctx, d.probe)
	}
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return d.fault(err)
	}
	return d.checkSession(ttl)
}

// probe makes and removes a node in one transaction, so that nobody sees it.
func (d *Driver) probe() error {
	at := d.base + "/{probe}" // no lock's: EscapeName makes no braces
	_, err := d.conn.Multi(
		&zk.CreateRequest{Path: at, Acl: d.acl, Flags: zk.FlagEphemeral},
		&zk.DeleteRequest{Path: at, Version: anyVersion},
	)
	return err
}

func (d *Driver) checkSession(ttl time.Duration) error {
	s := d.dialer.session()
	if s.id != d.conn.SessionID() {
		return &drivers.ConfigError{
			Key: "dialer", Problem: "is not the one of this connection alone",
			Fix: "make a zkelection.NewDialer for each connection and give its Dial to zk.WithDialer",
		}
	}
	if ttl > s.timeout() {
		return &drivers.ConfigError{
			Key: "lock_ttl", Value: ttl.String(),
			Problem: fmt.Sprintf("is longer than the session that zookeeper %s gave", d.conn.Server()),
			Fix:     fmt.Sprintf("use at most %v, or raise the server's maxSessionTimeout", s.timeout()),
		}
	}
	return nil
}

// Guarantees tells what the driver promises.
func (d *Driver) Guarantees() drivers.Guarantee {
	return drivers.Fencing | drivers.Fair | drivers.Prompt
}

// vet refuses what can't be asked for.
func (d *Driver) vet(ctx context.Context, r drivers.Request) error {
	if err := drivers.CheckName(r.Name); err != nil {
		return err
	}
	if err := d.ready(ctx); err != nil {
		return err
	}
	s := d.dialer.session()
	if s.id == 0 {
		return drivers.Unavailable(errors.New("zookeeper: there is no session at present"))
	}
	return drivers.CheckTTL(r.TTL, 1, s.timeout())
}

func (d *Driver) ready(ctx context.Context) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	return ctx.Err()
}

// TryAcquire makes one attempt.
func (d *Driver) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.vet(ctx, r); err != nil {
		return drivers.Grant{}, err
	}
	p, err := d.enqueueFirst(ctx, r)
	if err != nil {
		return drivers.Grant{}, d.fault(err)
	}
	if !p.alone {
		if err := d.insist(ctx, p); err != nil {
			return drivers.Grant{}, d.fault(err)
		}
	}
	return d.grant(p)
}

// insist returns nil if a place that has brothers is the first nevertheless:
// others queued behind it, or they are foreign. It is not if the parent was
// made anew and happened to have the expected version.
func (d *Driver) insist(ctx context.Context, p *place) error {
	q, err := d.list(ctx, p.name)
	if err == nil && q.index(p.path) == 0 {
		return nil
	}
	burial := d.bury(p.name, p.owner)
	if err = ignoreNoNode(err); err != nil {
		return err
	}
	if err := burial.waitFor(ctx, p); err != nil && !errors.Is(err, drivers.ErrLost) {
		return err
	}
	if len(q.nodes) == 0 { // somebody removed its node, and there is no holder
		return drivers.Unavailable(errRemoved)
	}
	return d.heldBy(ctx, q.nodes[0])
}

// grant makes a grant of a place that is the first of its queue, unless its
// session is over.
func (d *Driver) grant(p *place) (drivers.Grant, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return drivers.Grant{}, drivers.ErrClosed
	}
	if p.over != "" || p.session != d.dialer.session() {
		d.buryLocked(p.name, p.owner)
		return drivers.Grant{}, drivers.Unavailable(errSessionEnded)
	}
	p.renewed = p.since
	ttl := p.session.timeout()
	return drivers.Grant{
		Name: p.name, Owner: p.owner, Token: drivers.Token(p.zxid),
		TTL: ttl, Margin: margin(ttl), Since: p.since, State: p,
	}, nil
}

// Renew proves that the session and the node are there. The session itself is
// kept alive by any request.
func (d *Driver) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := d.ready(ctx); err != nil {
		return 0, err
	}
	p := d.placeOf(g)
	if p == nil {
		return 0, drivers.Lost(drivers.Taken, nil)
	}
	sent := time.Now()
	if err := d.lostAlready(p, time.Time{}); err != nil {
		return 0, err
	}
	err := d.prover.prove(ctx, p.path)
	if errors.Is(err, zk.ErrNoNode) {
		d.end(p, drivers.Taken)
		return 0, drivers.Lost(drivers.Taken, nil)
	}
	if err != nil {
		return 0, d.fault(err)
	}
	// In a new session the node of the last one may be seen for a moment more.
	if err := d.lostAlready(p, sent); err != nil {
		return 0, err
	}
	return p.session.timeout(), nil
}

// Release deletes the node of the grant. If the outcome is not clear by the
// end of ctx the driver goes on with it.
func (d *Driver) Release(ctx context.Context, g drivers.Grant) error {
	if d.isClosed() {
		return drivers.ErrClosed
	}
	p := d.placeOf(g)
	if p == nil {
		return d.fault(d.bury(g.Name, g.Owner).wait(ctx))
	}
	d.end(p, drivers.Taken)
	err := d.delete(ctx, p.path)
	if err != nil && !refused(err) {
		err = d.releaseUnclear(ctx, p)
	}
	switch {
	case err == nil:
		d.setIdle(p)
	case errors.Is(err, zk.ErrNoNode):
		err = drivers.Lost(drivers.Taken, nil)
	}
	return d.fault(err)
}

// releaseUnclear ends a release whose deletion was not answered. If nothing is
// left, and the session is the same, it was that deletion which did it.
func (d *Driver) releaseUnclear(ctx context.Context, p *place) error {
	err := d.bury(p.name, p.owner).wait(ctx)
	if errors.Is(err, drivers.ErrLost) && p.session == d.dialer.session() {
		return nil
	}
	return err
}
