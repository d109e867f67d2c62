package redisnode

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A carrier makes calls that end when their context does. go-redis alone does
// not: while it waits for a reply it heeds a context's deadline, but not its
// cancellation, and one command of a client can't be interrupted.
type carrier interface {
	carry(ctx context.Context, call func(*Node) error) error
	close()
}

// A stock is the carrier of the URL form. A call takes a client with one
// connection of its own, which is closed under it if the context ends. A
// goroutine for each call would cost half a round trip.
type stock struct {
	make  func() *Node
	turns chan struct{} // one for each call under way

	mu     sync.Mutex
	all    map[*Node]struct{}
	idle   []*Node // the last one used is the first one taken
	closed bool
}

func newStock(makeNode func() *Node) *stock {
	return &stock{
		make:  makeNode,
		turns: make(chan struct{}, 10*runtime.GOMAXPROCS(0)), // go-redis's own limit
		all:   map[*Node]struct{}{},
	}
}

func (s *stock) carry(ctx context.Context, call func(*Node) error) error {
	n, err := s.take(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = n.client.Close() })
	err = call(n)
	// After trouble go-redis answers for up to a second with the old error.
	s.giveBack(n, stop() && !errors.Is(err, drivers.ErrUnavailable))
	return err
}

func (s *stock) take(ctx context.Context) (*Node, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		<-s.turns
		return nil, drivers.ErrClosed
	}
	if last := len(s.idle) - 1; last >= 0 {
		n := s.idle[last]
		s.idle = s.idle[:last]
		return n, nil
	}
	n := s.make()
	s.all[n] = struct{}{}
	return n, nil
}

// giveBack ends a turn. A client that is not whole is not used again.
func (s *stock) giveBack(n *Node, whole bool) {
	defer func() { <-s.turns }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if whole && !s.closed {
		s.idle = append(s.idle, n)
		return
	}
	_ = n.client.Close()
	delete(s.all, n)
}

// close also ends the calls that are under way.
func (s *stock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for n := range s.all {
		_ = n.client.Close()
	}
}

// A visitor is the carrier on a client of the caller's, which it must not
// close. It leaves a call behind that outlives its context; the client's
// ReadTimeout ends it.
type visitor struct {
	node *Node

	mu     sync.Mutex
	closed bool
	behind sync.WaitGroup
}

func (v *visitor) carry(ctx context.Context, call func(*Node) error) error {
	if ctx.Done() == nil {
		return call(v.node)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- call(v.node) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		v.leave(done)
		return v.node.unanswered(ctx.Err())
	}
}

// leave has close wait for the end of a call.
func (v *visitor) leave(done <-chan error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.behind.Go(func() { <-done })
	}
}

// close waits for the calls that were left behind.
func (v *visitor) close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	done := make(chan struct{})
	go func() {
		v.behind.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeBound):
	}
}
