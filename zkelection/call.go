package zkelection

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

// call runs a request of the client, which knows no context, and returns when
// ctx ends: the request then ends by itself, with the connection at the
// latest. It is not for creating nodes: see Driver.enqueue.
func call[T any](ctx context.Context, request func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if err := ctx.Err(); err != nil {
		var none T
		return none, err
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := request()
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// run is call for a request without a result.
func run(ctx context.Context, request func() error) error {
	_, err := call(ctx, func() (struct{}, error) { return struct{}{}, request() })
	return err
}

// refusals are answers of a server that repeating won't change. They also say
// that nothing was done.
var refusals = []error{
	zk.ErrNoNode, zk.ErrBadVersion, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrNoChildrenForEphemerals,
	zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrInvalidPath, zk.ErrBadArguments, zk.ErrInvalidFlags,
}

func refused(err error) bool {
	for _, r := range refusals {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// isUnimplemented recognises the answer of a server before 3.5 to an operation
// that it does not know. The client has no value for it.
func isUnimplemented(err error) bool {
	return err != nil && err.Error() == "unknown error: -6"
}

// fault makes the error of the contract out of the client's.
func (d *Driver) fault(err error) error {
	if err != nil && d.isClosed() {
		return drivers.ErrClosed
	}
	return d.classify(err)
}

func (d *Driver) classify(err error) error {
	var config *drivers.ConfigError
	switch {
	case err == nil, errors.As(err, &config), isContracts(err):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed), errors.Is(err, zk.ErrInvalidACL):
		return d.forbidden(err)
	case refused(err):
		return fmt.Errorf("zookeeper %s: %w", d.conn.Server(), err)
	}
	return drivers.Unavailable(fmt.Errorf("zookeeper %s: %w", d.conn.Server(), err))
}

// isContracts reports whether err is one of the contract's own already.
func isContracts(err error) bool {
	for _, e := range []error{drivers.ErrHeld, drivers.ErrNotHeld, drivers.ErrLost, drivers.ErrUnavailable, drivers.ErrReleased, drivers.ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (d *Driver) forbidden(err error) error {
	return &drivers.ConfigError{
		Key:     "user",
		Problem: fmt.Sprintf("was refused by zookeeper %s at %s (%v)", d.conn.Server(), d.base, err),
		Fix:     "give the user and password of the one who made these nodes, or let this user create, read, write and delete there",
	}
}

// errSessionEnded is why an attempt came to nothing: its node went with its
// session.
var errSessionEnded = errors.New("the session ended meanwhile, or was shortened")
