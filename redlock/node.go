package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

// A node is one server. It does nothing before its checks have passed.
type node struct {
	locks      *redisnode.Node
	client     *redis.Client
	index      int
	census     *census
	background func(work func(closing <-chan struct{})) bool
	debts      debts

	eachConn bool        // checked by the client on each new connection
	passed   atomic.Bool // checked, and no failure since
}

// neverSent marks an error that came before anything was sent.
type neverSent struct{ err error }

func (e *neverSent) Error() string { return e.err.Error() }
func (e *neverSent) Unwrap() error { return e.err }

func (n *node) acquire(ctx context.Context, r drivers.Request) error {
	return n.do(ctx, func() error {
		_, err := n.locks.Acquire(ctx, r)
		return err
	})
}

func (n *node) renew(ctx context.Context, r drivers.Request, ttl time.Duration) error {
	return n.do(ctx, func() error { return n.locks.Renew(ctx, r.Name, r.Owner, ttl) })
}

func (n *node) release(ctx context.Context, r drivers.Request, bury bool) error {
	return n.do(ctx, func() error { return n.locks.Release(ctx, r.Name, r.Owner, bury) })
}

// inspect returns a *drivers.HeldError or an error that matches ErrNotHeld.
func (n *node) inspect(ctx context.Context, name string) error {
	return n.do(ctx, func() error {
		holder, err := n.locks.Inspect(ctx, name)
		if err != nil {
			return err
		}
		return &drivers.HeldError{Holder: holder, Remaining: holder.Remaining}
	})
}

func (n *node) do(ctx context.Context, call func() error) error {
	if err := n.ready(ctx); err != nil {
		return &neverSent{err}
	}
	err := call()
	if errors.Is(err, drivers.ErrUnavailable) {
		n.passed.Store(false)
	}
	return err
}

// ready makes sure that the server has passed its checks.
func (n *node) ready(ctx context.Context) error {
	if n.eachConn || n.passed.Load() {
		return nil
	}
	_, err := n.server(ctx)
	n.passed.Store(err == nil)
	return err
}

// onConnect checks the server over a new connection, which is not used if that
// fails.
func (n *node) onConnect(ctx context.Context, conn *redis.Conn) error {
	server, err := n.locks.ServerOf(ctx, conn)
	if err == nil {
		err = n.census.admit(n.index, server)
	}
	if err != nil {
		return &neverSent{err}
	}
	return nil
}

// server asks the server about itself and checks the answer.
func (n *node) server(ctx context.Context) (redisnode.Server, error) {
	server, err := n.locks.Server(ctx)
	if err == nil {
		err = n.census.admit(n.index, server)
	}
	return server, err
}

// greet is the first call to a server.
func (n *node) greet(ctx context.Context) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	_, err := n.locks.Greet(ctx)
	return err
}

// A census knows the servers by the ids of their present runs.
type census struct {
	mu  sync.Mutex
	ids []string
}

// admit refuses a server that can't be one of a majority of independent ones.
func (c *census) admit(index int, s redisnode.Server) error {
	if s.Unread != "" {
		return &drivers.ConfigError{Key: "user", Problem: fmt.Sprintf("can't check redis %s: %s", s.Addr, s.Unread),
			Fix: "allow INFO, as by ACL SETUSER … +info"}
	}
	if err := s.Refuse(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range c.ids {
		if i != index && id == s.RunID {
			return &drivers.ConfigError{Key: "host", Value: s.Addr, Problem: "is one of two addresses of one server",
				Fix: "name each server once"}
		}
	}
	c.ids[index] = s.RunID
	return nil
}
