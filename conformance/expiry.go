package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkit/lock/drivers"
)

var expiryChecks = []Check{
	{ID: "basic/expires", Promise: "basic", run: expires,
		Rule: "A grant that is not renewed ends by itself within its TTL and the slack"},
	{ID: "basic/not-early", Promise: "basic", run: notEarly, slow: true,
		Rule: "Nobody else is granted a name before the holder's Since + TTL − margin"},
	{ID: "basic/close-expires", Promise: "basic", run: closeExpires,
		Rule: "A grant that is held when its client is closed ends with its TTL and the slack at the latest"},
	{ID: "basic/release-late", Promise: "basic", run: releaseLate,
		Rule: "A release after the grant has ended by itself returns ErrLost and ends no successor's grant"},
	{ID: "basic/renew-late", Promise: "basic", run: renewLate,
		Rule: "A renewal after a successor took the name returns ErrLost and never takes it back"},
	{ID: "basic/renew-expired", Promise: "basic", run: renewExpired,
		Rule: "A renewal after the grant has ended by itself returns ErrLost though nobody took the name, and stores nothing"},
}

func expires(ctx context.Context, e *env) error {
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	if err := h.refuses(ctx, e.b); err != nil {
		return err
	}
	next, err := h.expiresTo(ctx, e.b)
	if err != nil {
		return err
	}
	return next.stands(ctx, e.c)
}

// notEarly looks twice: at the TTL of the grant, and at that of a renewal.
func notEarly(ctx context.Context, e *env) error {
	for _, renewed := range []bool{false, true} {
		h, err := e.takeAlone(ctx)
		if err != nil {
			return err
		}
		if renewed {
			pause(ctx, time.Until(h.from.Add(h.ttl/2)))
			if err := h.renew(ctx); err != nil {
				return err
			}
		}
		next, err := h.expiresTo(ctx, e.b)
		if err != nil {
			return err
		}
		if early := h.validUntil().Sub(next.told); early > 0 {
			return fmt.Errorf("another owner was granted it %v before the holder's time was over (renewed: %v)", early, renewed)
		}
	}
	return nil
}

func closeExpires(ctx context.Context, e *env) error {
	d, err := openOne(ctx, e.Config)
	if err != nil {
		return err
	}
	h, err := e.grab(ctx, d, e.name(), e.ttl)
	if err != nil {
		return err
	}
	if err := h.refuses(ctx, e.b); err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	h.over = true
	next, err := h.endsFor(ctx, e.b)
	if err != nil {
		return err
	}
	return next.stands(ctx, e.c)
}

// outlived lets a grant end by itself and a successor take the name.
func (e *env) outlived(ctx context.Context) (late, next *hold, err error) {
	late, err = e.takeAlone(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := late.refuses(ctx, e.b); err != nil {
		return nil, nil, err
	}
	next, err = late.expiresTo(ctx, e.b)
	late.over = true
	return late, next, err
}

func releaseLate(ctx context.Context, e *env) error {
	late, next, err := e.outlived(ctx)
	if err != nil {
		return err
	}
	for _, g := range []drivers.Grant{late.g, {Name: late.g.Name, Owner: late.g.Owner}} {
		if err := lost("a late Release", late.d.Release(ctx, g)); err != nil {
			return err
		}
		if err := next.refuses(ctx, e.c); err != nil {
			return err
		}
	}
	return next.stands(ctx, e.c)
}

func renewLate(ctx context.Context, e *env) error {
	late, next, err := e.outlived(ctx)
	if err != nil {
		return err
	}
	_, err = late.d.Renew(ctx, late.g)
	if err := lost("a late Renew", err); err != nil {
		return err
	}
	return next.stands(ctx, e.c)
}

func renewExpired(ctx context.Context, e *env) error {
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	undo, err := h.silence()
	if err != nil {
		return err
	}
	pause(ctx, time.Until(h.mustEndBy()))
	undo()
	_, err = h.d.Renew(ctx, h.g)
	if err := lost("Renew of an expired grant", err); err != nil {
		return err
	}
	next, err := e.grab(ctx, e.b, h.g.Name, e.longTTL)
	if err != nil {
		return err
	}
	return next.stands(ctx, e.c)
}
