package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockkit/lock/drivers"
)

// promises maps the groups that a driver may leave out to their bit.
var promises = map[string]drivers.Guarantee{
	"fencing": drivers.Fencing,
	"durable": drivers.Durable,
	"fair":    drivers.Fair,
	"prompt":  drivers.Prompt,
}

var catalogue = slices.Concat(basicChecks, sinceChecks, expiryChecks, renewChecks, contendChecks, waitChecks, watchChecks, engineChecks, fencingChecks, engineFencingChecks, durableChecks, fairChecks, promptChecks)

// looksAbsent sees that a promise that is not made does not look as if it was.
func (e *env) looksAbsent(ctx context.Context, promise string, bit drivers.Guarantee) error {
	if bit == drivers.Fencing {
		if err := errors.Join(e.givesNoToken(ctx), e.refusesFencedLock(ctx)); err != nil {
			return err
		}
	}
	return &absent{fmt.Sprintf("%s does not promise %s", e.Name, promise)}
}

func (e *env) givesNoToken(ctx context.Context) error {
	r := e.request(e.name(), e.ttl)
	r.Fenced = true
	h, err := e.send(ctx, e.a, e.a.TryAcquire, r)
	if err != nil {
		return nil //nolint:nilerr // refusing a fenced request is a way to give no token
	}
	if h.g.Token != 0 {
		return fmt.Errorf("fencing is not promised but a token was given: %d", h.g.Token)
	}
	return nil
}
