package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

var watchChecks = []Check{
	{ID: "basic/watch", Promise: "basic", run: watch,
		Rule: "Watch reports no grant that is held or was released, and returns when its context ends"},
}

// watch listens for false alarms while grants are taken, renewed and released.
func watch(ctx context.Context, e *env) error {
	d, err := e.open(ctx)
	if err != nil {
		return err
	}
	w, ok := d.(drivers.Watcher)
	if !ok {
		return &absent{e.Name + " has no drivers.Watcher"}
	}
	var heard alarms
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- protect(func() error { return w.Watch(watching, heard.add) }) }()
	if err := e.holdAndRelease(ctx, d); err != nil {
		return err
	}
	cancel()
	select {
	case <-ended:
		return heard.last()
	case <-time.After(5 * time.Second):
		return errors.New("it had not returned 5s after its context ended")
	}
}

type alarms struct {
	mu  sync.Mutex
	one error
}

func (a *alarms) add(owner string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.one = fmt.Errorf("it reported owner %s: %w", owner, orNil(err))
}

func (a *alarms) last() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.one
}

func (e *env) holdAndRelease(ctx context.Context, d drivers.Driver) error {
	for range 3 {
		h, err := e.grab(ctx, d, e.name(), e.longTTL)
		if err != nil {
			return err
		}
		pause(ctx, settle)
		if err := h.renew(ctx); err != nil {
			return err
		}
		if err := h.release(ctx); err != nil {
			return err
		}
		pause(ctx, settle)
	}
	return nil
}
