// Package redlock is the driver for redlock:// URLs: locks on a majority of
// independent Redis servers.
//
// It bears the loss of a minority of the servers. It is an efficiency lock all
// the same: it has no fencing tokens, it rests on the clocks of the servers,
// and a server that restarts without its data can let a second holder in.
// Never guard data with it that a second writer would spoil.
//
// # URL
//
//	redlock://[[user]:password@]host[:6379],host,host[,…][/database][?lock_prefix=lock&lock_node_timeout=…]
//
// An odd number of servers, three or more, that know nothing of each other: no
// replicas, no cluster, no two addresses of one server. A user info before the
// first host serves all that have none. lock_node_timeout is how long one
// server is waited for that is asked to grant; the default is a tenth of the
// time to live, within 50 ms and 1 s. [New] takes clients of your own, for TLS and the like.
//
// # Promises
//
// None. Not Fencing: Redlock's random value orders nothing. Not Durable, not
// Fair, not Prompt (waiters poll).
//
// # How it works
//
// Every request goes to all servers at once and is decided as soon as a
// majority has said yes, or no longer can. A grant is one that a majority gave
// while some of its time to live was left, counted from before the first
// request was sent; the others' answers are not waited for, but their requests
// go on, and whatever follows for the same owner on the same server is sent
// after them. So a release finds what it has to end. What a server could not be
// told is told it again for a minute.
//
// A failed attempt releases what it got. It ends as held if one other owner was
// seen on a majority, and with ErrNoQuorum otherwise: contenders who split the
// servers between them try again at random times.
//
// A renewal needs a majority too. Servers that have no hold in a round that a
// majority confirmed, such as one that restarted, are given the hold again and
// count from the next round on.
//
// A server counts only after it was seen to be a primary, in no cluster and
// none of the others: by URL on each new connection, with clients of your own
// at first and after each failure. So a driver can be opened while a minority
// is down. INFO must be allowed.
//
// The keys are those of package redisnode, without tokens. A time to live is at
// least 100 ms.
//
// # What can go wrong
//
// A server restarts without its data while it counts for a holder: another
// client may find a majority free. Keep appendonly on with appendfsync always,
// or leave a server that restarted switched off for the longest time to live
// in use: this driver does not do that for you.
//
// The clock of a server steps ahead: as above.
//
// The set of servers is changed one client at a time: two majorities need not
// share a server. Stop all clients first.
//
// Most servers hang: calls fail with ErrNoQuorum after the node time-out.
//
// # Cost
//
// One round trip to all servers each for acquire, renew and release, and five
// times the work for five servers. One INFO for each new connection.
package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

const (
	defaultPrefix = "lock"
	minTTL        = 100 * time.Millisecond // the shortest node time-out must fit in
	closeBound    = 3 * time.Second
)

// Options configures a Driver. Nil means the defaults.
type Options struct {
	// Prefix begins every key; the default is "lock". It has no braces.
	Prefix string

	// NodeTimeout is how long one server is waited for that is asked to
	// grant. The default is a tenth of the time to live, within 50 ms and 1 s.
	NodeTimeout time.Duration
}

// A Driver keeps locks on a majority of Redis servers.
type Driver struct {
	nodes  []*node
	quorum int
	opts   Options
	owned  bool // the clients are the driver's
	failed attempts

	mu      sync.Mutex
	closing chan struct{} // closed by Close
	work    sync.WaitGroup
}

// New makes a driver that uses the caller's clients, one for each server, and
// never closes them. They must be made with MaxRetries: -1,
// ContextTimeoutEnabled: true and a ReadTimeout. ctx bounds the making only.
func New(ctx context.Context, clients []*redis.Client, opts *Options) (*Driver, error) {
	d, err := build(clients, opts)
	if err != nil {
		return nil, err
	}
	if err := d.meet(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// build sends nothing.
func build(clients []*redis.Client, opts *Options) (*Driver, error) {
	if err := checkCount(len(clients)); err != nil {
		return nil, err
	}
	d := &Driver{quorum: len(clients)/2 + 1, closing: make(chan struct{})}
	d.failed.leases = map[string]*lease{}
	if opts != nil {
		d.opts = *opts
	}
	if d.opts.Prefix == "" {
		d.opts.Prefix = defaultPrefix
	}
	seen := &census{ids: make([]string, len(clients))}
	for i, client := range clients {
		n, err := redisnode.NewNode(client, d.opts.Prefix)
		if err != nil {
			return nil, err
		}
		d.nodes = append(d.nodes, &node{locks: n, client: client, index: i, census: seen, background: d.background})
	}
	return d, nil
}

func checkCount(n int) error {
	if n < 3 || n%2 == 0 {
		return &drivers.ConfigError{Key: "host", Problem: fmt.Sprintf("names %d servers", n),
			Fix: "name an odd number of independent servers, three or more; one server alone is redis://"}
	}
	return nil
}

// Guarantees implements drivers.Driver.
func (d *Driver) Guarantees() drivers.Guarantee { return 0 }

// TryAcquire implements drivers.Driver.
func (d *Driver) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := redisnode.Admit(r, minTTL); err != nil {
		return drivers.Grant{}, err
	}
	if err := d.refuse(ctx); err != nil {
		return drivers.Grant{}, err
	}
	r.Fenced = false
	ttl := redisnode.Kept(r.TTL)
	l := d.newLease(r)
	d.failed.forget(r.Owner)
	since := time.Now()
	t, err := d.decide(ctx, d.send(l, d.all(), d.bound(ttl), acquire), (*tally).acquireDecided)
	if err == nil {
		err = t.acquireError(time.Since(since), ttl)
	}
	if err != nil {
		d.giveUp(ctx, l, t.yes)
		return drivers.Grant{}, err
	}
	return drivers.Grant{Name: r.Name, Owner: r.Owner, TTL: ttl, Since: since, State: l}, nil
}

// giveUp releases what an attempt got or may yet get. It waits for the servers
// that are known to have granted, unless ctx has ended.
func (d *Driver) giveUp(ctx context.Context, l *lease, granted []int) {
	votes := d.send(l, d.all(), d.patience(), release)
	d.failed.remember(l)
	for range d.nodes {
		if len(granted) == 0 {
			return
		}
		select {
		case v := <-votes:
			granted = slices.DeleteFunc(granted, func(i int) bool { return i == v.node })
		case <-ctx.Done():
			return
		}
	}
}

// Renew implements drivers.Driver.
func (d *Driver) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := drivers.CheckTTL(g.TTL, minTTL, drivers.MaxTTL); err != nil {
		return 0, err
	}
	if err := d.refuse(ctx); err != nil {
		return 0, err
	}
	ttl := redisnode.Kept(g.TTL)
	l := d.leaseOf(g)
	deadline := time.Now().Add(ttl - drivers.Margin(ttl))
	t, err := d.decide(ctx, d.send(l, d.all(), d.patience(), renew(ttl)), (*tally).decided)
	if err == nil {
		err = t.verdict()
	}
	if err != nil {
		return 0, err
	}
	// The servers whose answer is still out are meant too: this comes after it.
	d.send(l, t.others(), d.patience(), reseed(ttl, deadline))
	return ttl, nil
}

// Release implements drivers.Driver.
func (d *Driver) Release(ctx context.Context, g drivers.Grant) error {
	if err := d.refuse(ctx); err != nil {
		return err
	}
	l := d.leaseOf(g)
	if l.done.Load() {
		return drivers.Lost(drivers.Taken, nil)
	}
	t, err := d.decide(ctx, d.send(l, d.all(), d.patience(), release), (*tally).decided)
	if err != nil {
		return err
	}
	err = t.verdict()
	l.done.Store(err == nil)
	return err
}

// refuse is the error of a call that can't begin.
func (d *Driver) refuse(ctx context.Context) error {
	select {
	case <-d.closing:
		return drivers.ErrClosed
	default:
		return ctx.Err()
	}
}

// leaseOf is the lease of a grant. Of a grant without its state it is only
// known that any server may hold it.
func (d *Driver) leaseOf(g drivers.Grant) *lease {
	if l, ok := g.State.(*lease); ok && l.driver == d {
		return l
	}
	if l, ok := d.failed.of(g.Name, g.Owner); ok {
		return l
	}
	l := d.newLease(drivers.Request{Name: g.Name, Owner: g.Owner, TTL: g.TTL})
	for i := range l.at {
		l.at[i].held = true
	}
	return l
}

// bound is how long one server is waited for that is asked to grant.
func (d *Driver) bound(ttl time.Duration) time.Duration {
	if d.opts.NodeTimeout > 0 {
		return d.opts.NodeTimeout
	}
	const least, most = 50 * time.Millisecond, time.Second
	return min(max(ttl/10, least), most)
}

// patience is the bound of all else: there the caller's context ends the
// waiting, and an answer that comes late is still of use.
func (d *Driver) patience() time.Duration { return max(d.opts.NodeTimeout, time.Second) }

func (d *Driver) all() []int {
	all := make([]int, len(d.nodes))
	for i := range all {
		all[i] = i
	}
	return all
}

// Close implements drivers.Driver. It waits for what is under way and tells the
// servers once more what they could not be told.
func (d *Driver) Close() error {
	if !d.stop() {
		return nil
	}
	done := make(chan struct{})
	go func() {
		d.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeBound):
	}
	d.hangUp()
	return nil
}

// stop lets no more work begin. It reports whether it was the first.
func (d *Driver) stop() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.closing:
		return false
	default:
		close(d.closing)
		return true
	}
}

// hangUp closes the clients if they are the driver's.
func (d *Driver) hangUp() {
	if !d.owned {
		return
	}
	for _, n := range d.nodes {
		_ = n.client.Close()
	}
}

// background does work that Close waits for. It reports false, and does
// nothing, if the driver is closed.
func (d *Driver) background(work func(closing <-chan struct{})) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.closing:
		return false
	default:
		d.work.Go(func() { work(d.closing) })
		return true
	}
}
