package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkit/lock/drivers"
)

var renewChecks = []Check{
	{ID: "basic/renew-keeps", Promise: "basic", run: renewKeeps, slow: true,
		Rule: "A grant that is renewed in time is kept beyond twice its TTL"},
	{ID: "basic/renew-sets", Promise: "basic", run: renewSets,
		Rule: "A renewal sets the time to live and never adds to it"},
	{ID: "basic/renew-foreign", Promise: "basic", run: renewForeign,
		Rule: "A renewal by an owner that does not hold the name returns ErrLost and changes nothing"},
	{ID: "basic/renew-released", Promise: "basic", run: renewReleased,
		Rule: "A renewal after the release returns ErrLost and stores nothing"},
}

func renewKeeps(ctx context.Context, e *env) error {
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	for end := h.from.Add(h.ttl * 5 / 2); time.Now().Before(end); {
		next := h.from.Add(h.ttl / 3)
		for time.Now().Before(next) {
			if err := h.refuses(ctx, e.b); err != nil {
				return err
			}
			pause(ctx, min(h.ttl/10, time.Until(next)))
		}
		if err := h.renew(ctx); err != nil {
			return err
		}
	}
	return h.stands(ctx, e.c)
}

// renewSets renews so often that, were it added, the grant would outlive its
// TTL by far more than the slack.
func renewSets(ctx context.Context, e *env) error {
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	for range 3 + 2*int(e.slack/h.ttl) {
		if err := h.renew(ctx); err != nil {
			return err
		}
	}
	if err := h.refuses(ctx, e.b); err != nil {
		return err
	}
	_, err = h.expiresTo(ctx, e.b)
	return err
}

func renewForeign(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	for _, d := range []drivers.Driver{e.a, e.b} {
		foreign := drivers.Grant{Name: h.g.Name, Owner: e.request("", 0).Owner, TTL: h.ttl, Since: time.Now()}
		_, err := d.Renew(ctx, foreign)
		if err := lost("Renew by a foreign owner", err); err != nil {
			return err
		}
		if err := h.refuses(ctx, e.c); err != nil {
			return err
		}
	}
	return h.stands(ctx, e.b)
}

func renewReleased(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	if err := h.renew(ctx); err != nil {
		return err
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	for range 2 {
		_, err := e.a.Renew(ctx, h.g)
		if err := lost("Renew after the release", err); err != nil {
			return err
		}
	}
	if _, err := h.isFreeFor(ctx, e.b); err != nil {
		return fmt.Errorf("the renewal took it back: %w", err)
	}
	return nil
}
