package drivers

import (
	"context"
	"errors"
	"time"
)

// ContextEnd is ctx.Err. Where the deadline is over it waits for the context to
// say so: the timer of a connection may be faster than the context's.
func ContextEnd(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err()
}

// Unanswered marks the error of a call that outlived its context, which err
// must match. A deadline speaks of the service, which is then unavailable; a
// cancellation does not.
func Unanswered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return Unavailable(err)
	}
	return err
}
