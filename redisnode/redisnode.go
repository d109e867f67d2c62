// Package redisnode is the driver for redis:// and rediss:// URLs: locks on one
// Redis server.
//
// It does not keep a lock through the loss of the server's data: a restart
// without persistence, a failover to a replica, an eviction or FLUSHALL frees
// every lock at once, and the holders do not learn of it before their next
// renewal. Fencing tokens still rise through all of these on one server, so a
// store that checks them refuses the earlier holder.
//
// # URL
//
//	redis://[[user]:password@]host[:6379][/database][?lock_prefix=lock]
//	rediss://…   the same over TLS, verified against the system's authorities
//
// [New] takes a *redis.Client of your own, for anything else.
//
// # Promises
//
// Fencing, on a standalone primary that has no replica and answers INFO.
// A replica might be promoted without the last tokens and with another clock.
// Not Durable, not Fair (Redis keeps no queue of waiters), not Prompt (waiters
// poll).
//
// # How it works
//
// One script for each operation, one round trip. A grant is the key
// PREFIX:hold:{NAME} with the value "OWNER TOKEN NOTE" and a time to live; it
// is set if it does not exist, and renewed and deleted only if it begins with
// the owner. A token is the server's clock in microseconds, or one more than the
// last token of the name if that is higher; the last one is kept in
// PREFIX:token:{NAME} until seven days after the time that it stands for. So a
// counter that was lost, or that came back from an old snapshot, gives no number
// again. Names that are never asked for a token have no such key.
//
// A release that finds nothing of its owner leaves PREFIX:gone:{NAME}:OWNER for
// a minute. A server that stood still executes the requests of clients that
// gave up long ago; the key refuses those.
//
// A time to live has milliseconds, rounded up, and is at least 10 ms.
//
// # What can go wrong
//
// The clock of the server steps ahead: holds end early and two holders may
// believe at once; tokens still rise. It steps back: holds last longer. It
// steps back while the counter is lost, or by more than seven days: tokens may
// fall.
//
// A replica is promoted: the name may be held twice, and tokens may fall.
//
// A request arrives more than a minute after its owner was released: the name
// is blocked for one time to live.
//
// The server is away: go-redis writes a line to the standard error for each
// failed dial, by a logger that is the same for the whole program; give it
// another one with redis.SetLogger.
//
// # Cost
//
// One round trip each for acquire, renew, release and inspect. One connection
// for each call that is under way, from the client's pool. Waiters poll.
package redisnode

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
)

const (
	defaultPrefix = "lock"
	minTTL        = 10 * time.Millisecond // below it the margin is most of it
	openBound     = 5 * time.Second       // for a server that does not answer
	closeBound    = 3 * time.Second
)

// Options configures a Driver. Nil means the defaults.
type Options struct {
	// Prefix begins every key; the default is "lock". It has no braces.
	Prefix string
}

func (o *Options) prefix() string {
	if o == nil || o.Prefix == "" {
		return defaultPrefix
	}
	return o.Prefix
}

// A Driver keeps locks on one Redis server.
type Driver struct {
	addr     string
	carrier  carrier
	promises atomic.Uint32
	closed   atomic.Bool
}

// New makes a driver that uses the caller's client and never closes it. The
// client must be made with MaxRetries: -1, ContextTimeoutEnabled: true and a
// ReadTimeout. ctx bounds the making only.
func New(ctx context.Context, client *redis.Client, opts *Options) (*Driver, error) {
	node, err := NewNode(client, opts.prefix())
	if err != nil {
		return nil, err
	}
	return start(ctx, node.addr, &visitor{node: node})
}

// start makes sure that the server answers, can keep locks and lets us.
func start(ctx context.Context, addr string, c carrier) (*Driver, error) {
	bounded, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	d := &Driver{addr: addr, carrier: c}
	err := c.carry(bounded, func(n *Node) error {
		server, err := n.Greet(bounded)
		d.promises.Store(uint32(server.promised()))
		return err
	})
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		err = drivers.Unavailable(fmt.Errorf("redis %s: no answer within %v: is this the right address?", addr, openBound))
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return d, nil
}

// call makes one call. What it writes may be read only if there is no error.
func (d *Driver) call(ctx context.Context, call func(*Node) error) error {
	if d.closed.Load() {
		return drivers.ErrClosed
	}
	return d.carrier.carry(ctx, call)
}

// Guarantees implements drivers.Driver.
func (d *Driver) Guarantees() drivers.Guarantee {
	return drivers.Guarantee(d.promises.Load())
}

// TryAcquire implements drivers.Driver.
func (d *Driver) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := Admit(r, minTTL); err != nil {
		return drivers.Grant{}, err
	}
	r.Fenced = r.Fenced && d.Guarantees().Has(drivers.Fencing)
	since := time.Now()
	var token drivers.Token
	err := d.call(ctx, func(n *Node) (err error) {
		token, err = n.Acquire(ctx, r)
		return err
	})
	if err != nil {
		return drivers.Grant{}, err
	}
	return drivers.Grant{Name: r.Name, Owner: r.Owner, Token: token, TTL: Kept(r.TTL), Since: since}, nil
}

// Renew implements drivers.Driver.
func (d *Driver) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := drivers.CheckTTL(g.TTL, minTTL, drivers.MaxTTL); err != nil {
		return 0, err
	}
	err := d.call(ctx, func(n *Node) error { return n.Renew(ctx, g.Name, g.Owner, g.TTL) })
	if err != nil {
		return 0, err
	}
	return Kept(g.TTL), nil
}

// Release implements drivers.Driver.
func (d *Driver) Release(ctx context.Context, g drivers.Grant) error {
	return d.call(ctx, func(n *Node) error { return n.Release(ctx, g.Name, g.Owner, false) })
}

// Close implements drivers.Driver.
func (d *Driver) Close() error {
	if !d.closed.Swap(true) {
		d.carrier.close()
	}
	return nil
}

// Kept is what a server makes of a time to live: whole milliseconds.
func Kept(ttl time.Duration) time.Duration {
	return time.Duration(millis(ttl)) * time.Millisecond
}

// Admit refuses a request that no Redis driver can serve, before anything is
// sent.
func Admit(r drivers.Request, shortest time.Duration) error {
	if err := drivers.CheckName(r.Name); err != nil {
		return err
	}
	if !validOwner(r.Owner) {
		return &drivers.ConfigError{Key: "owner", Value: r.Owner, Problem: "is not an owner", Fix: "use 1 to 64 letters and digits"}
	}
	return drivers.CheckTTL(r.TTL, shortest, drivers.MaxTTL)
}

// validOwner keeps the fields of a hold apart.
func validOwner(owner string) bool {
	for i := range len(owner) {
		if c := owner[i]; c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return owner != "" && len(owner) <= 64
}
