package conformance

import (
	"context"
	"fmt"
	mrand "math/rand/v2"
	"time"

	"github.com/lockkit/lock/drivers"
)

var fencingChecks = []Check{
	{ID: "fencing/positive", Promise: "fencing", run: tokenPositive,
		Rule: "Every grant that was asked for with Fenced carries a positive token"},
	{ID: "fencing/rises-release", Promise: "fencing", run: tokenRisesRelease,
		Rule: "Tokens of a name rise from release to release within one client"},
	{ID: "fencing/rises-clients", Promise: "fencing", run: tokenRisesClients,
		Rule: "Tokens of a name rise from one client to another"},
	{ID: "fencing/rises-expiry", Promise: "fencing", run: tokenRisesExpiry,
		Rule: "Tokens of a name rise when a grant has ended by itself"},
	{ID: "fencing/rises-abandoned", Promise: "fencing", run: tokenRisesAbandoned,
		Rule: "Tokens of a name rise over attempts that were cancelled, refused or released without a grant"},
	{ID: "fencing/rises-waiters", Promise: "fencing", run: tokenRisesWaiters,
		Rule: "Tokens of a name rise in the order in which waiters are served, and carry a positive token each"},
	{ID: "fencing/fixed", Promise: "fencing", run: tokenFixed,
		Rule: "The token of a grant stays the same over its renewals"},
	{ID: "fencing/contention", Promise: "fencing", run: tokenContention,
		Rule: "Tokens are unique and rise in the order of holders under contention"},
	{ID: "fencing/contention-crashes", Promise: "fencing", run: tokenCrashes, slow: true,
		Rule: "Tokens are unique and rise in the order of holders when holders vanish under contention"},
}

var durableChecks = []Check{
	{ID: "durable/tokens", Promise: "durable", run: durableTokens, alone: true,
		Rule: "No token is given that is not above all that were acknowledged before a restart"},
}

// tokens remembers the highest token of a name.
type tokens struct{ last drivers.Token }

func (t *tokens) rise(h *hold) error {
	if h.g.Token <= 0 {
		return fmt.Errorf("the token is %d", h.g.Token)
	}
	if h.g.Token <= t.last {
		return fmt.Errorf("token %d came after token %d", h.g.Token, t.last)
	}
	t.last = h.g.Token
	return nil
}

// next takes the name, sees its token rise and releases it.
func (t *tokens) next(ctx context.Context, e *env, d drivers.Driver, name string) error {
	h, err := e.grab(ctx, d, name, e.longTTL)
	if err != nil {
		return err
	}
	if err := t.rise(h); err != nil {
		return err
	}
	return h.release(ctx)
}

func tokenPositive(ctx context.Context, e *env) error {
	for _, d := range []drivers.Driver{e.a, e.b, e.c} {
		for range 3 {
			var t tokens
			if err := t.next(ctx, e, d, e.name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func tokenRisesRelease(ctx context.Context, e *env) error {
	var t tokens
	name := e.name()
	for range 10 {
		if err := t.next(ctx, e, e.a, name); err != nil {
			return err
		}
	}
	return nil
}

func tokenRisesClients(ctx context.Context, e *env) error {
	var t tokens
	name := e.name()
	for i := range 12 {
		if err := t.next(ctx, e, []drivers.Driver{e.a, e.b, e.c}[i*i%3], name); err != nil {
			return err
		}
	}
	later, err := e.open(ctx)
	if err != nil {
		return err
	}
	return t.next(ctx, e, later, name)
}

func tokenRisesExpiry(ctx context.Context, e *env) error {
	var t tokens
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	if err := t.rise(h); err != nil {
		return err
	}
	next, err := h.expiresTo(ctx, e.b)
	if err != nil {
		return err
	}
	if err := t.rise(next); err != nil {
		return err
	}
	if err := next.release(ctx); err != nil {
		return err
	}
	return t.next(ctx, e, e.c, h.g.Name)
}

func tokenRisesAbandoned(ctx context.Context, e *env) error {
	var t tokens
	typical, err := e.timeOne(ctx)
	if err != nil {
		return err
	}
	name := e.name()
	for i := range 16 {
		h, err := e.grab(ctx, e.a, name, e.longTTL)
		if err != nil {
			return err
		}
		if err := t.rise(h); err != nil {
			return err
		}
		if err := h.refuses(ctx, e.b); err != nil {
			return err
		}
		if err := h.release(ctx); err != nil {
			return err
		}
		r := e.request(name, e.longTTL)
		if i%2 == 0 { // else the request is lost on its way
			e.abandon(ctx, r, mrand.N(2*typical)) //nolint:gosec // not a secret
		}
		e.reclaim(ctx, e.c, r)
	}
	return nil
}

// abandon makes an attempt through client c that is cancelled after a while.
func (e *env) abandon(ctx context.Context, r drivers.Request, after time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	_, _ = e.c.TryAcquire(ctx, r)
}

func tokenRisesWaiters(ctx context.Context, e *env) error {
	if _, err := e.waiter(e.b); err != nil {
		return err
	}
	var t tokens
	h, err := e.take(ctx)
	for range 4 {
		if err != nil {
			return err
		}
		if err := t.rise(h); err != nil {
			return err
		}
		q := e.queue(ctx, e.b, h.g.Name, 0, settle)
		if err := q.stillWaits(h); err != nil {
			return err
		}
		if err := h.release(ctx); err != nil {
			return err
		}
		h, err = q.served(ctx, h.soon())
	}
	return err
}

func tokenFixed(ctx context.Context, e *env) error {
	i, ok := e.b.(drivers.Inspector)
	if !ok {
		return &unproven{e.Name + " has no drivers.Inspector that could tell the token"}
	}
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	for range 3 {
		who, err := i.Inspect(ctx, h.g.Name)
		switch {
		case err != nil:
			return fmt.Errorf("Inspect of a held name: %w", err)
		case who.Token == 0:
			return &unproven{"Inspect does not tell the token"}
		case who.Token != h.g.Token:
			return fmt.Errorf("the grant has token %d, the service tells %d", h.g.Token, who.Token)
		}
		if err := h.renew(ctx); err != nil {
			return err
		}
	}
	return h.releasedTo(ctx, e.b)
}

func tokenContention(ctx context.Context, e *env) error {
	return e.contest(e.name(), e.longTTL, e.a, e.b, e.c).tokensInOrder(ctx)
}

func tokenCrashes(ctx context.Context, e *env) error {
	c, err := e.crashing(ctx)
	if err != nil {
		return err
	}
	return c.tokensInOrder(ctx)
}

func (c *contest) tokensInOrder(ctx context.Context) error {
	if err := c.run(ctx); err != nil {
		return err
	}
	for _, e := range c.rec.History() {
		if e.Op == OpAcquire && e.Phase == OK && e.Token <= 0 {
			return fmt.Errorf("a grant had token %d", e.Token)
		}
	}
	if v := append(TokenOrder(c.rec.History()), HolderOrder(c.rec.History())...); len(v) > 0 {
		return violated(v)
	}
	return nil
}

// durableTokens restarts the service while one name is held and one is free.
func durableTokens(ctx context.Context, e *env) error {
	switch {
	case e.Restart == nil:
		return &unproven{"Config.Restart is nil: the service could not be restarted"}
	case !e.promised.Has(drivers.Fencing):
		return &unproven{"Fencing is not promised: there is no token to be kept"}
	}
	var free, kept tokens
	freeName := e.name()
	for range 5 {
		if err := free.next(ctx, e, e.a, freeName); err != nil {
			return err
		}
	}
	h, err := e.takeAlone(ctx)
	if err != nil {
		return err
	}
	if err := kept.rise(h); err != nil {
		return err
	}
	if err := e.Restart(ctx); err != nil {
		return &unproven{"the service could not be restarted: " + err.Error()}
	}
	h.over = true
	if err := free.riseAgain(ctx, e, freeName); err != nil {
		return err
	}
	return kept.riseAgain(ctx, e, h.g.Name)
}

// riseAgain tries until the service grants the name again.
func (t *tokens) riseAgain(ctx context.Context, e *env, name string) error {
	for {
		h, err := e.tryAnew(ctx, name)
		switch {
		case err == nil:
			return t.rise(h)
		case ctx.Err() != nil:
			return fmt.Errorf("the name was not granted again after the restart: %w", err)
		}
		pause(ctx, max(50*time.Millisecond, e.ttl/4))
	}
}

// tryAnew makes an attempt through a new client: an old one may take its time
// to find the service again.
func (e *env) tryAnew(ctx context.Context, name string) (*hold, error) {
	d, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	return e.try(ctx, d, name, e.longTTL)
}
