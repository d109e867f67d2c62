// Package etcdlease is the driver for etcd:// and etcds:// URLs: locks in an
// etcd cluster, with fencing tokens and a fair queue.
//
// What it does not promise: Durable, because whether the members write to disk
// before they answer (--unsafe-no-fsync) can't be read from them. And, as with
// every lease, a holder that is stopped past its time and wakes up still
// believes: let the resource check the token.
//
// # URL
//
//	etcd://[user:password@]host[:2379][,host…][?lock_prefix=lock&dial_timeout=5s]
//	etcds://…   the same over TLS, verified against the system's authorities
//
// Name all members: what one of them does not answer is asked of another.
// [New] takes a *clientv3.Client of your own, for anything else. No lock_prefix
// may be the beginning of another one up to a slash, as app and app/eu.
//
// # Promises
//
// Fencing: a token is the revision at which etcd created the holder's key.
// Fair: waiters are served in the order in which etcd took their keys. Prompt:
// a waiter watches the key before its own. All three with any settings of the
// servers, from 3.4 on. Releases before 3.4.38, 3.5.23 and 3.6.5 may renew a
// lease that has ended; Check warns of them.
//
// # How it works
//
// Each acquisition has a key of its own, PREFIX/NAME/q/OWNER, with the owner and
// the note in two lines; the key that was created first holds. TryAcquire is
// one transaction that puts the key if there is no other. Acquire is one
// transaction that puts it behind the others; it then watches the key before
// its own, from the present revision on, and looks again whenever something was
// told and at least once every Poll. A waiter whose own key is gone gets an
// error and is never told that it holds.
//
// Each acquisition also has an etcd lease of its own, so that a grant that is
// not renewed ends, whatever becomes of the others of the process, and the loss
// of a lease is the loss of one lock. Leases are used again: a release deletes
// the key and keeps the lease for the next acquisition. Idle leases are not kept
// alive; they end with their time to live, or by Close.
//
// Renew is a keep-alive of the lease and, at the same time, a read of the key:
// a lease lives on when its key was deleted by hand, of which the holder learns
// at its next renewal. A time to live has whole
// seconds, rounded up, and is at least the server's minimum, which is one and a
// half election time-outs (2 s by default). etcd ends a lease up to a second
// late and never early, a change of the leader begins its time anew; so the
// usual margin suffices.
//
// A release that finds no grant, after a request whose outcome is unknown,
// leaves PREFIX/NAME/t/OWNER for one to two minutes, and the request is refused
// if it arrives later. Besides, the lease of that request is revoked.
//
// # What can go wrong
//
// A request is put into the queue more than a minute after its owner was
// released, and its lease could not be revoked: the name is blocked until that
// lease ends, at most one time to live.
//
// A waiter's process dies: its place is only cleared when its lease ends, and
// those behind it wait so long. The same holds for a holder.
//
// Members are restored from a backup, or lose their disks: revisions, and so
// tokens, may be given again.
//
// A user without readwrite permission for PREFIX/ is refused when the driver is
// opened.
//
// A member stops answering while its connections stay open. What it was asked is
// asked of another one after half a second, which slows some calls down until
// the client gives the connection up, after some 13 s. A call that no member
// answers fails, as unavailable, after 3 s.
//
// # Cost
//
// An acquire and a release are one write each, of which etcd gathers many in
// one sync of its log; the first acquire after a pause of a time to live needs
// a second write, for a new lease. A TryAcquire that is refused is a write, too.
// A renewal is a message on a stream and a read, neither of them written. A
// hand-off is a watch event and a read. Each waiter costs a watch, a keep-alive
// every third of its time to live and a read every Poll.
package etcdlease

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkit/lock/drivers"
)

const (
	defaultPrefix  = "lock"
	defaultBound   = 5 * time.Second // for a server that does not answer when the driver is opened
	requestBound   = 3 * time.Second // for each request after that
	closeBound     = 5 * time.Second
	maxLeaseTrials = 3 // leases taken for one acquire, if etcd has already ended the first ones
)

// Options configures a Driver. Nil means the defaults.
type Options struct {
	// Prefix begins every key; the default is "lock".
	Prefix string
}

func (o *Options) prefix() string {
	if o == nil || o.Prefix == "" {
		return defaultPrefix
	}
	return o.Prefix
}

// A Driver keeps locks in one etcd cluster.
type Driver struct {
	cluster
	client *clientv3.Client
	owned  bool // the client is the driver's and is closed with it
	keys   keyspace
	leases *stock

	life context.Context // ends at Close
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

// New makes a driver that uses the caller's client and never closes it. ctx
// bounds the making only, during which the cluster must answer. The context in
// the client's Config must live as long as the driver. Its DialKeepAliveTime and
// DialKeepAliveTimeout should be set, or a member that hangs is never given up,
// and so should the connect parameters of gRPC (grpc.WithConnectParams), or a
// cluster that was away for long may be found again two minutes late.
func New(ctx context.Context, client *clientv3.Client, opts *Options) (*Driver, error) {
	if err := checkClient(client); err != nil {
		return nil, err
	}
	d, err := newDriver(client, opts.prefix())
	if err != nil {
		return nil, err
	}
	if err := d.meet(ctx, defaultBound); err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

func newDriver(client *clientv3.Client, prefix string) (*Driver, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	d := &Driver{cluster: cluster{addresses(client.Endpoints()), prefix}, client: client, keys: keyspace(prefix)}
	d.life, d.end = context.WithCancel(context.Background())
	d.leases = newStock(d.life, client)
	return d, nil
}

// checkClient refuses a client that can't work. More of its settings can't be
// read.
func checkClient(client *clientv3.Client) error {
	fault := &drivers.ConfigError{Key: "clientv3.Client"}
	switch {
	case client == nil:
		fault.Problem, fault.Fix = "is nil", "make one with clientv3.New"
	case client.ActiveConnection() == nil || client.KV == nil || client.Lease == nil || client.Watcher == nil:
		fault.Problem, fault.Fix = "has no connection", "make it with clientv3.New, not NewCtxClient"
	case client.Ctx().Err() != nil:
		fault.Problem, fault.Fix = "is closed or its context has ended", "leave Context out of its Config, and close it after the driver"
	default:
		return nil
	}
	return fault
}

// Guarantees implements drivers.Driver.
func (d *Driver) Guarantees() drivers.Guarantee {
	return drivers.Fencing | drivers.Fair | drivers.Prompt
}

// A hold is the State of a grant.
type hold struct {
	lease    *lease
	revision int64 // that created the key
	repeated bool  // as in place
}

// TryAcquire implements drivers.Driver.
func (d *Driver) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.begin(ctx, r); err != nil {
		return drivers.Grant{}, err
	}
	defer d.calls.Done()
	l, p, err := d.place(ctx, r, d.putAlone)
	if err != nil {
		return drivers.Grant{}, d.explain(ctx, err)
	}
	if p.revision == 0 {
		return drivers.Grant{}, d.explain(ctx, d.refuse(ctx, l, p))
	}
	return granted(r, l, p), nil
}

// refuse says why nothing was put, when it is sure that nothing will be.
func (d *Driver) refuse(ctx context.Context, l *lease, p place) error {
	if !p.repeated {
		d.leases.put(l)
		return p.refusal()
	}
	if err := d.leases.revoke(ctx, l); err != nil {
		d.abandon(l)
		return err
	}
	return p.refusal()
}

func granted(r drivers.Request, l *lease, p place) drivers.Grant {
	return drivers.Grant{
		Name: r.Name, Owner: r.Owner, Token: drivers.Token(p.revision), TTL: l.ttl, Since: l.since(),
		State: &hold{lease: l, revision: p.revision, repeated: p.repeated},
	}
}

// place takes a lease and puts a key on it. When it returns an error, the
// lease, and with it whatever the request may yet put, is being revoked.
func (d *Driver) place(ctx context.Context, r drivers.Request, put putter) (*lease, place, error) {
	for trial := 1; ; trial++ {
		l, err := d.leases.take(ctx, r.TTL)
		if err != nil {
			return nil, place{}, err
		}
		p, err := d.putOn(ctx, l, r, put)
		if err == nil {
			return l, p, nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			d.abandon(l)
			return nil, place{}, err
		}
		// The lease has ended, and what was put on it with it. The rest of the
		// stock may have ended, too.
		d.leases.forget(l.class)
		if trial == maxLeaseTrials {
			return nil, place{}, errLeaseEnded
		}
	}
}

// putOn puts the key, and renews a lease that is not quite new at the same time,
// so that the grant has its time before it.
func (d *Driver) putOn(ctx context.Context, l *lease, r drivers.Request, put putter) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	renewed := d.leases.freshen(ctx, l)
	p, tries, err := insist(ctx, d.client, func(ctx context.Context) (place, error) { return put(ctx, l, r) })
	p.repeated = tries > 1
	if ended := <-renewed; err == nil && errors.Is(ended, rpctypes.ErrLeaseNotFound) {
		err = ended
	}
	return p, err
}

// abandon revokes a lease in the background: a request of unknown outcome may
// have put a key on it, or may yet do so. If that fails it ends by itself.
func (d *Driver) abandon(l *lease) {
	d.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestBound)
		defer cancel()
		_ = d.leases.revoke(ctx, l)
	})
}

// Renew implements drivers.Driver.
func (d *Driver) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.calls.Done()
	ttl, err := d.renew(ctx, g)
	return ttl, d.explain(ctx, err)
}

// renew keeps the lease alive and looks whether the key is still there, both at
// once.
func (d *Driver) renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	h, ok := g.State.(*hold)
	if !ok {
		var err error
		if h, err = d.find(ctx, g); err != nil {
			return 0, err
		}
	}
	var kept time.Duration
	renewed := make(chan error, 1)
	go func() {
		ttl, err := d.leases.renew(ctx, h.lease)
		kept = ttl
		renewed <- err
	}()
	now, err := d.find(ctx, g)
	switch ended := <-renewed; {
	case errors.Is(ended, rpctypes.ErrLeaseNotFound):
		return 0, drivers.Lost(drivers.SessionEnded, ended)
	case err != nil:
		return 0, err
	case now.revision != h.revision:
		return 0, drivers.Lost(drivers.Taken, errKeyGone)
	case ended != nil:
		return 0, ended
	}
	return kept, nil
}

// Release implements drivers.Driver.
func (d *Driver) Release(ctx context.Context, g drivers.Grant) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.calls.Done()
	bounded, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	h, ok := g.State.(*hold)
	switch {
	case !ok:
		return d.explain(ctx, d.bury(bounded, g))
	case h.repeated:
		defer d.abandon(h.lease) // not before: the key would go with it and seem lost
		return d.explain(ctx, d.bury(bounded, g))
	}
	return d.explain(ctx, d.remove(bounded, g, h))
}

// remove ends a grant whose requests have all been answered, so that none is on
// its way and the lease is free for the next acquisition.
func (d *Driver) remove(ctx context.Context, g drivers.Grant, h *hold) error {
	removed, tries, err := insist(ctx, d.client, func(ctx context.Context) (bool, error) {
		return d.deleteKey(ctx, g, h.revision)
	})
	switch {
	case err != nil:
		return err
	case removed:
		d.leases.put(h.lease)
		return nil
	case tries > 1 && h.lease.age() < h.lease.ttl:
		return nil // the lease can't have ended yet: it was the try that got no answer
	}
	return drivers.Lost(drivers.Taken, errKeyGone)
}

// Close implements drivers.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	again := d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	d.end()
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	d.settle(ctx)
	d.leases.revokeAll(ctx)
	if d.owned {
		_ = d.client.Close()
	}
	return nil
}

// settle waits for the calls that are under way and for the leases that are
// being revoked.
func (d *Driver) settle(ctx context.Context) {
	done := make(chan struct{})
	go func() { d.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// begin enters a call that acquires.
func (d *Driver) begin(ctx context.Context, r drivers.Request) error {
	if err := drivers.CheckName(r.Name); err != nil {
		return err
	}
	if err := checkOwner(r.Owner); err != nil {
		return err
	}
	if err := drivers.CheckTTL(r.TTL, 1, drivers.MaxTTL); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.enter()
}

// enter admits a call. The caller calls d.calls.Done at its end.
func (d *Driver) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return drivers.ErrClosed
	}
	d.calls.Add(1)
	return nil
}
