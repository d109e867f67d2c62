// Package memory is the driver for mem:// URLs: locks inside one process.
//
// It excludes goroutines of one process from each other and nothing else. Use
// it in tests of programs that take locks, as the model of what a driver does,
// and with [Faults] to see how a program bears a failing lock service.
//
// # URL
//
//	mem://[space][?lock_prefix=…&lock_durable=true]
//
// All drivers opened with one space name in one process share one [Store].
//
// # Promises
//
// Fencing, Fair, Prompt. Not Durable: tokens begin at 1 when the process
// starts. lock_durable=true (Options.Durable) claims it all the same, so that a
// program that demands lock.Correctness can be tested without a server.
//
// # How it works
//
// A map under a mutex. A release or an expiry hands the name to the first
// waiter in the same step. One counter for the whole store makes the tokens.
//
// # What can go wrong
//
// Whatever a [Faults] hook does. A second process has a store of its own.
//
// # Cost
//
// No round trip. A name that is free and has no waiters takes no memory.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// minTTL keeps the margin small beside the time to live.
const minTTL = 10 * time.Millisecond

// Options configures a Driver. Nil means the defaults.
type Options struct {
	Prefix  string // put before every name; the default is none
	Durable bool   // claim Durable, for tests of programs that demand it
}

// A Driver is one client of a Store.
type Driver struct {
	store   *Store
	opts    Options
	closing sync.Once
	closed  chan struct{}
}

// New makes a driver for the store.
func New(store *Store, opts *Options) *Driver {
	d := &Driver{store: store, closed: make(chan struct{})}
	if opts != nil {
		d.opts = *opts
	}
	return d
}

// Store is where the driver keeps its locks.
func (d *Driver) Store() *Store { return d.store }

// Guarantees implements drivers.Driver.
func (d *Driver) Guarantees() drivers.Guarantee {
	g := drivers.Fencing | drivers.Fair | drivers.Prompt
	if d.opts.Durable {
		g |= drivers.Durable
	}
	return g
}

// TryAcquire implements drivers.Driver.
func (d *Driver) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.admit(r); err != nil {
		return drivers.Grant{}, err
	}
	var g drivers.Grant
	err := d.call(ctx, Call{Op: OpAcquire, Name: r.Name, Owner: r.Owner}, func() (err error) {
		g, err = d.store.tryAcquire(d.key(r.Name), r)
		return err
	})
	if err != nil {
		return drivers.Grant{}, err
	}
	return g, nil
}

// Acquire implements drivers.Waiter.
func (d *Driver) Acquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.admit(r); err != nil {
		return drivers.Grant{}, err
	}
	var g drivers.Grant
	err := d.call(ctx, Call{Op: OpAcquire, Name: r.Name, Owner: r.Owner}, func() (err error) {
		g, err = d.wait(ctx, r)
		return err
	})
	if err != nil {
		return drivers.Grant{}, err
	}
	return g, nil
}

func (d *Driver) wait(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	w, err := d.store.enqueue(d.key(r.Name), r)
	if err != nil {
		return drivers.Grant{}, err
	}
	select {
	case g := <-w.granted:
		return g, nil
	case <-ctx.Done():
		d.store.leave(w)
		return drivers.Grant{}, ctx.Err()
	case <-d.closed:
		d.store.leave(w)
		return drivers.Grant{}, drivers.ErrClosed
	}
}

// Renew implements drivers.Driver.
func (d *Driver) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	err := d.call(ctx, Call{Op: OpRenew, Name: g.Name, Owner: g.Owner}, func() error {
		return d.store.renew(d.key(g.Name), g.Owner, g.TTL)
	})
	if err != nil {
		return 0, err
	}
	return g.TTL, nil
}

// Release implements drivers.Driver.
func (d *Driver) Release(ctx context.Context, g drivers.Grant) error {
	return d.call(ctx, Call{Op: OpRelease, Name: g.Name, Owner: g.Owner}, func() error {
		return d.store.release(d.key(g.Name), g.Owner)
	})
}

// Inspect implements drivers.Inspector.
func (d *Driver) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	return d.store.inspect(d.key(name))
}

// Check implements drivers.Checker.
func (d *Driver) Check(context.Context) (drivers.Report, error) {
	r := drivers.Report{Product: "memory", Version: "in process"}
	for _, g := range drivers.Guarantees {
		p := drivers.Promise{Guarantee: g, Made: d.Guarantees().Has(g)}
		if !p.Made {
			p.Why = "memory: everything is forgotten when the process ends"
		}
		r.Promises = append(r.Promises, p)
	}
	return r, nil
}

// Close implements drivers.Driver.
func (d *Driver) Close() error {
	d.closing.Do(func() { close(d.closed) })
	return nil
}

func (d *Driver) key(name string) string { return d.opts.Prefix + name }

// admit refuses what no driver may accept.
func (d *Driver) admit(r drivers.Request) error {
	if err := drivers.CheckName(r.Name); err != nil {
		return err
	}
	return drivers.CheckTTL(r.TTL, minTTL, drivers.MaxTTL)
}

// call does one exchange with the store, between the hooks.
func (d *Driver) call(ctx context.Context, c Call, exchange func() error) error {
	select {
	case <-d.closed:
		return drivers.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f := d.store.hooks()
	if f.Before != nil {
		if err := f.Before(ctx, c); err != nil {
			return err
		}
	}
	err := exchange()
	if f.After != nil {
		if lost := f.After(ctx, c); lost != nil {
			return lost
		}
	}
	return err
}
