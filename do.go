package lock

import (
	"context"
	"errors"
)

// Context returns a context that ends with the lease, or with parent, or when
// cancel is called. If the lease was lost, context.Cause matches ErrLost.
func Context(parent context.Context, l Lease) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if err := l.Err(); err != nil {
		cancel(err) // also before Done is closed
		return ctx, func() {}
	}
	go func() {
		select {
		case <-l.Done():
			cancel(l.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Do waits for the lock, runs fn and releases the lock. The context of fn ends
// when the lease is lost; fn should then stop.
//
// Do returns what Acquire or fn returned. If the lease ended before fn did, the
// error also matches ErrLost, even if fn returned nil: someone else may have
// run at the same time. A release that the service did not confirm is no
// error: the work was done in time, and the release is repeated in the
// background. The lock is released also if fn panics.
func Do[L Lease](ctx context.Context, l Acquirer[L], fn func(ctx context.Context) error) error {
	lease, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, lease, fn)
}

// TryDo is Do with a single attempt: if someone else holds the lock, fn does
// not run and the error matches ErrHeld.
func TryDo[L Lease](ctx context.Context, l Acquirer[L], fn func(ctx context.Context) error) error {
	lease, err := l.TryAcquire(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, lease, fn)
}

// DoFenced is Do with the token, to be sent with every write to what the lock
// protects.
func DoFenced(ctx context.Context, l FencedLock, fn func(ctx context.Context, token Token) error) error {
	lease, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, lease, func(ctx context.Context) error { return fn(ctx, lease.Token()) })
}

// TryDoFenced is TryDo with the token.
func TryDoFenced(ctx context.Context, l FencedLock, fn func(ctx context.Context, token Token) error) error {
	lease, err := l.TryAcquire(ctx)
	if err != nil {
		return err
	}
	return hold(ctx, lease, func(ctx context.Context) error { return fn(ctx, lease.Token()) })
}

func hold(ctx context.Context, lease Lease, fn func(ctx context.Context) error) (err error) {
	held, cancel := Context(ctx, lease)
	defer cancel()
	defer func() {
		released := lease.Release(ctx)
		if errors.Is(released, ErrLost) && !errors.Is(err, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	return fn(held)
}

// Inspect tells who holds the lock, for people: by the time it returns that may
// have changed. The error matches ErrNotHeld if nobody does, and
// errors.ErrUnsupported if the backend can't tell.
func Inspect[L Lease](ctx context.Context, l Acquirer[L]) (Holder, error) {
	if i, ok := l.(interface {
		Inspect(context.Context) (Holder, error)
	}); ok {
		return i.Inspect(ctx)
	}
	return Holder{}, &Error{Op: "inspect", Name: l.Name(), Err: errors.ErrUnsupported}
}
