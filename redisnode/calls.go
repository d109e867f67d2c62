package redisnode

import (
	"context"
	"sync"
	"time"
)

// calls lets callers leave when their context ends, which go-redis does not: it
// heeds a context's deadline but not its cancellation while it waits for a
// reply. What a caller leaves behind ends with the client's own time-outs.
type calls struct {
	mu     sync.Mutex
	closed bool
	behind sync.WaitGroup
}

type outcome[T any] struct {
	value T
	err   error
}

// await runs a call and returns when it or ctx has ended, whichever is first.
func await[T any](ctx context.Context, c *calls, call func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return call()
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	done := make(chan outcome[T], 1)
	go func() {
		value, err := call()
		done <- outcome[T]{value, err}
	}()
	select {
	case out := <-done:
		return out.value, out.err
	case <-ctx.Done():
		c.leave(func() { <-done })
		return none, ctx.Err()
	}
}

// leave has Close wait for the end of a call.
func (c *calls) leave(wait func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.behind.Go(wait)
	}
}

// close waits for the calls that were left behind, at most for the given time.
func (c *calls) close(bound time.Duration) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.behind.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(bound):
	}
}
