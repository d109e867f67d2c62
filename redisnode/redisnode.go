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
// the owner. A token is the larger of the last one plus one and the server's
// clock in microseconds; the last one is kept in PREFIX:token:{NAME}, for seven
// days longer than the clock it stands for. Names that are never asked for a
// token have no such key.
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
// steps back while the counter is lost, or by more than the seven days: tokens
// may fall.
//
// A replica is promoted: the name may be held twice, and tokens may fall.
//
// A request arrives more than a minute after its owner was released: the name
// is blocked for one time to live.
//
// # Cost
//
// One round trip each for acquire, renew, release and inspect. One connection
// for each call that is under way, from the client's pool. Waiters poll.
package redisnode

import (
	"context"
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
	node     *Node
	owned    *redis.Client // nil if the client is the caller's
	promises atomic.Uint32
	closed   atomic.Bool
	calls    calls
}

// New makes a driver that uses the caller's client and never closes it. The
// client must be made with MaxRetries: -1, ContextTimeoutEnabled: true and a
// ReadTimeout. ctx bounds the making only.
func New(ctx context.Context, client *redis.Client, opts *Options) (*Driver, error) {
	node, err := NewNode(client, opts.prefix())
	if err != nil {
		return nil, err
	}
	d := &Driver{node: node}
	if err := d.meet(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// meet makes sure that the server answers, can keep locks and lets us.
func (d *Driver) meet(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	server, err := await(bounded, &d.calls, func() (Server, error) { return d.node.Greet(bounded) })
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return drivers.Unavailable(d.node.errorf("no answer within %v: is this the right address?", openBound))
	}
	if err != nil {
		return err
	}
	d.promises.Store(uint32(server.promised()))
	return nil
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
	if d.closed.Load() {
		return drivers.Grant{}, drivers.ErrClosed
	}
	r.Fenced = r.Fenced && d.Guarantees().Has(drivers.Fencing)
	since := time.Now()
	token, err := await(ctx, &d.calls, func() (drivers.Token, error) { return d.node.Acquire(ctx, r) })
	if err != nil {
		return drivers.Grant{}, err
	}
	return drivers.Grant{Name: r.Name, Owner: r.Owner, Token: token, TTL: kept(r.TTL), Since: since}, nil
}

// Renew implements drivers.Driver.
func (d *Driver) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := drivers.CheckTTL(g.TTL, minTTL, drivers.MaxTTL); err != nil {
		return 0, err
	}
	if d.closed.Load() {
		return 0, drivers.ErrClosed
	}
	return await(ctx, &d.calls, func() (time.Duration, error) {
		return kept(g.TTL), d.node.Renew(ctx, g.Name, g.Owner, g.TTL)
	})
}

// Release implements drivers.Driver.
func (d *Driver) Release(ctx context.Context, g drivers.Grant) error {
	if d.closed.Load() {
		return drivers.ErrClosed
	}
	_, err := await(ctx, &d.calls, func() (struct{}, error) {
		return struct{}{}, d.node.Release(ctx, g.Name, g.Owner, false)
	})
	return err
}

// Close implements drivers.Driver.
func (d *Driver) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	if d.owned != nil {
		_ = d.owned.Close() // ends the calls that were left behind
	}
	d.calls.close(closeBound)
	return nil
}

// kept is what the server makes of a time to live.
func kept(ttl time.Duration) time.Duration {
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
