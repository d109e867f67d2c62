package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockkit/lock/drivers"
)

var basicChecks = []Check{
	{ID: "basic/grant", Promise: "basic", run: grant,
		Rule: "A grant repeats name and owner, is counted from no later than its return, and carries a token only if it is positive"},
	{ID: "basic/ttl-kept", Promise: "basic", run: ttlKept,
		Rule: "A TTL is kept as asked or rounded up, and one that can't be kept is refused with *ConfigError"},
	{ID: "basic/bad-ttl", Promise: "basic", run: badTTL,
		Rule: "A TTL that is not positive or above MaxTTL is refused with *ConfigError and nothing is stored"},
	{ID: "basic/held", Promise: "basic", run: held,
		Rule: "While one owner holds a name every other owner is refused with *HeldError through another client"},
	{ID: "basic/not-reentrant", Promise: "basic", run: notReentrant,
		Rule: "A name held through a client is refused with *HeldError to other owners through the same client"},
	{ID: "basic/stored", Promise: "basic", run: stored,
		Rule: "Success means that the grant is stored where a client opened later sees it"},
	{ID: "basic/one-winner", Promise: "basic", run: oneWinner,
		Rule: "Of owners that ask at once for a free name at most one is granted it"},
	{ID: "basic/refusal", Promise: "basic", run: refusal,
		Rule: "A refusal names no one but the holder and no more time than the grant has left"},
	{ID: "basic/release-frees", Promise: "basic", run: releaseFrees,
		Rule: "A released name is granted to the next owner before the former TTL is over"},
	{ID: "basic/release-repeats", Promise: "basic", run: releaseRepeats,
		Rule: "A repeated release returns nil or ErrLost and hurts no successor"},
	{ID: "basic/release-stateless", Promise: "basic", run: releaseStateless,
		Rule: "A release works from name and owner alone"},
	{ID: "basic/release-foreign", Promise: "basic", run: releaseForeign,
		Rule: "A release by an owner that does not hold the name frees nothing"},
	{ID: "basic/release-race", Promise: "basic", run: releaseRace,
		Rule: "A release that runs beside its own repetition ends no successor's grant"},
	{ID: "basic/release-defeats-late-acquire", Promise: "basic", run: releaseDefeats,
		Rule: "A release through one client defeats a request of the same owner that reaches the service later through another"},
	{ID: "basic/release-defeats-own-late-acquire", Promise: "basic", run: releaseDefeatsOwn,
		Rule: "A release defeats a request of the same owner that reaches the service later through the same client"},
	{ID: "basic/cancelled", Promise: "basic", run: cancelled,
		Rule: "A cancelled attempt returns soon with an error that matches the context's and, released, leaves nothing behind"},
	{ID: "basic/cancelled-midway", Promise: "basic", run: cancelledMidway,
		Rule: "An attempt that is cancelled on its way and then released leaves nothing behind"},
	{ID: "basic/closed", Promise: "basic", run: closed,
		Rule: "After Close calls return an error, none hangs, and other clients go on"},
	{ID: "basic/names-distinct", Promise: "basic", run: namesDistinct,
		Rule: "Distinct names never block each other and are released one by one, whatever bytes they have"},
	{ID: "basic/inspect", Promise: "basic", run: inspect,
		Rule: "Inspect tells owner, note and remaining time of the holder, and ErrNotHeld of a free name"},
}

func grant(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	switch {
	case h.g.Token < 0:
		return fmt.Errorf("the token is %d", h.g.Token)
	case h.g.Since.After(h.told):
		return fmt.Errorf("Since is %v after the return", h.g.Since.Sub(h.told))
	case h.g.Margin < 0 || h.g.Margin >= h.g.TTL:
		return fmt.Errorf("a margin of %v leaves nothing of a TTL of %v", h.g.Margin, h.g.TTL)
	}
	return h.releasedTo(ctx, e.b)
}

func ttlKept(ctx context.Context, e *env) error {
	kept := 0
	for _, ask := range []time.Duration{1, time.Millisecond + 1, e.ttl, e.ttl*3/2 + 1234567, e.longTTL, 24 * time.Hour, drivers.MaxTTL} {
		h, err := e.try(ctx, e.a, e.name(), ask)
		if isConfig(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("asked for %v: %w", ask, err)
		}
		if h.g.TTL < ask {
			return fmt.Errorf("asked for %v and got %v", ask, h.g.TTL)
		}
		if err := nilOrLost("Release", e.a.Release(ctx, h.g)); err != nil {
			return err
		}
		h.over = true
		kept++
	}
	if kept == 0 {
		return fmt.Errorf("not even a TTL of %v is kept", e.ttl)
	}
	return nil
}

func badTTL(ctx context.Context, e *env) error {
	for _, ttl := range []time.Duration{0, -1, -time.Second, drivers.MaxTTL + 1} {
		if err := e.refusesTTL(ctx, e.a.TryAcquire, ttl); err != nil {
			return fmt.Errorf("TryAcquire for %v: %w", ttl, err)
		}
		if w, ok := e.a.(drivers.Waiter); ok {
			if err := e.refusesTTL(ctx, w.Acquire, ttl); err != nil {
				return fmt.Errorf("Acquire for %v: %w", ttl, err)
			}
		}
	}
	return nil
}

func (e *env) refusesTTL(ctx context.Context, acquire func(context.Context, drivers.Request) (drivers.Grant, error), ttl time.Duration) error {
	r := e.request(e.name(), ttl)
	g, err := acquire(ctx, r)
	switch {
	case err == nil:
		e.reclaim(ctx, e.a, r)
		return fmt.Errorf("granted for %v", g.TTL)
	case !isConfig(err):
		return fmt.Errorf("refused with %T (%w)", err, err)
	}
	h, err := e.grab(ctx, e.b, r.Name, e.longTTL)
	if err != nil {
		return fmt.Errorf("the name is not free afterwards: %w", err)
	}
	return h.release(ctx)
}

func held(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	if err := h.refuses(ctx, e.b, e.c, e.b); err != nil {
		return err
	}
	return h.releasedTo(ctx, e.b)
}

func notReentrant(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	if err := h.refuses(ctx, e.a, e.a); err != nil {
		return err
	}
	return h.releasedTo(ctx, e.a)
}

func stored(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	later, err := e.open(ctx)
	if err != nil {
		return err
	}
	if err := h.refuses(ctx, later); err != nil {
		return err
	}
	return h.releasedTo(ctx, later)
}

// oneWinner lets many ask at once. A round without a winner is allowed (a split
// vote), a run without one is not.
func oneWinner(ctx context.Context, e *env) error {
	const rounds, owners = 10, 9
	won := 0
	for range rounds {
		name, from := e.name(), []drivers.Driver{e.a, e.b, e.c}
		winners := make(chan *hold, owners)
		err := together(owners, func(i int) error {
			h, err := e.try(ctx, from[i%len(from)], name, e.longTTL)
			if err == nil {
				winners <- h
			}
			if isHeld(err) || errors.Is(err, drivers.ErrNoQuorum) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := onlyOne(ctx, winners); err != nil {
			return err
		}
		won += len(winners)
	}
	if won == 0 {
		return fmt.Errorf("nobody was granted any of %d free names", rounds)
	}
	return nil
}

func onlyOne(ctx context.Context, winners chan *hold) error {
	if len(winners) == 0 {
		return nil
	}
	h := <-winners
	if n := len(winners); n > 0 && h.valid() {
		return fmt.Errorf("%d owners were granted one name at once", n+1)
	}
	winners <- h
	return h.release(ctx)
}

func refusal(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	_, err = e.try(ctx, e.b, h.g.Name, e.ttl)
	var no *drivers.HeldError
	if !errors.As(err, &no) {
		return fmt.Errorf("another owner got %w and no *HeldError", orNil(err))
	}
	who := no.Holder
	switch {
	case who.Owner != "" && who.Owner != h.g.Owner:
		return fmt.Errorf("it names %q while %q holds", who.Owner, h.g.Owner)
	case who.Owner != "" && who.Token != 0 && who.Token != h.g.Token:
		return fmt.Errorf("it tells token %d while the holder has %d", who.Token, h.g.Token)
	case max(no.Remaining, who.Remaining) > h.ttl+e.slack:
		return fmt.Errorf("%v are left of a TTL of %v", max(no.Remaining, who.Remaining), h.ttl)
	case min(no.Remaining, who.Remaining) < 0:
		return fmt.Errorf("%v are left", min(no.Remaining, who.Remaining))
	}
	return h.releasedTo(ctx, e.b)
}

func releaseFrees(ctx context.Context, e *env) error {
	name := e.name()
	for _, pair := range [][2]drivers.Driver{{e.a, e.b}, {e.b, e.b}, {e.b, e.a}} {
		h, err := e.grab(ctx, pair[0], name, e.longTTL)
		if err != nil {
			return err
		}
		if err := h.refuses(ctx, e.c); err != nil {
			return err
		}
		if err := h.releasedTo(ctx, pair[1]); err != nil {
			return err
		}
	}
	return nil
}

func releaseRepeats(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	again := []drivers.Grant{h.g, {Name: h.g.Name, Owner: h.g.Owner}}
	for _, g := range again {
		if err := nilOrLost("a repeated Release", e.a.Release(ctx, g)); err != nil {
			return err
		}
	}
	next, err := h.goesTo(ctx, e.a)
	if err != nil {
		return err
	}
	for _, g := range again {
		if err := nilOrLost("a Release repeated after a successor came", e.a.Release(ctx, g)); err != nil {
			return err
		}
	}
	return next.stands(ctx, e.b)
}

// stands makes sure that a grant is still there, to the service and to others,
// and ends it.
func (h *hold) stands(ctx context.Context, witness drivers.Driver) error {
	if err := h.refuses(ctx, witness); err != nil {
		return fmt.Errorf("the holder was hurt: %w", err)
	}
	if err := h.renew(ctx); err != nil {
		return fmt.Errorf("the holder was hurt: %w", err)
	}
	return h.releasedTo(ctx, witness)
}

func releaseStateless(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	if err := h.refuses(ctx, e.b); err != nil {
		return err
	}
	h.g = drivers.Grant{Name: h.g.Name, Owner: h.g.Owner}
	return h.releasedTo(ctx, e.b)
}

func releaseForeign(ctx context.Context, e *env) error {
	h, err := e.take(ctx)
	if err != nil {
		return err
	}
	for _, d := range []drivers.Driver{e.a, e.b} {
		loser := e.request(h.g.Name, e.longTTL)
		if _, err := d.TryAcquire(ctx, loser); err == nil {
			return errors.New("another owner was granted the name")
		}
		for _, owner := range []string{loser.Owner, e.request("", 0).Owner} {
			err := d.Release(ctx, drivers.Grant{Name: h.g.Name, Owner: owner, TTL: h.ttl})
			if err := nilOrLost("Release by a foreign owner", err); err != nil {
				return err
			}
		}
		if err := h.refuses(ctx, e.c); err != nil {
			return err
		}
	}
	return h.stands(ctx, e.b)
}

// releaseRace finds a release that first looks and then deletes: of two that
// run at once the second may delete when the successor is there already.
func releaseRace(ctx context.Context, e *env) error {
	name, end := e.name(), time.Now().Add(1500*time.Millisecond)
	for round := 0; round < 200 && (round < 50 || time.Now().Before(end)); round++ {
		h, err := e.grab(ctx, e.a, name, e.longTTL)
		if err != nil {
			return err
		}
		next, err := h.raceRelease(ctx)
		if err != nil {
			return err
		}
		if err := next.refuses(ctx, e.b); err != nil {
			return fmt.Errorf("in round %d: %w", round, err)
		}
		if err := next.release(ctx); err != nil {
			return fmt.Errorf("in round %d: %w", round, err)
		}
	}
	return nil
}

func (h *hold) raceRelease(ctx context.Context) (next *hold, err error) {
	const releases = 3
	err = together(releases+1, func(i int) error {
		if i < releases {
			return nilOrLost("Release", h.d.Release(ctx, h.g))
		}
		next, err = h.goesToWithin(ctx, h.e.b, 0)
		return err
	})
	h.over = true
	return next, err
}

func releaseDefeats(ctx context.Context, e *env) error { return e.releaseFirst(ctx, e.b) }

func releaseDefeatsOwn(ctx context.Context, e *env) error { return e.releaseFirst(ctx, e.a) }

// releaseFirst sends a release through one client and then the attempt that it
// belongs to through client a, as if the network had turned them round.
func (e *env) releaseFirst(ctx context.Context, through drivers.Driver) error {
	for _, before := range []bool{false, true} {
		late := e.request(e.name(), e.longTTL)
		if before { // also on a name that the service knows already
			if h, err := e.grab(ctx, e.c, late.Name, e.longTTL); err != nil {
				return err
			} else if err := h.release(ctx); err != nil {
				return err
			}
		}
		err := through.Release(ctx, drivers.Grant{Name: late.Name, Owner: late.Owner})
		if err := nilOrLost("Release before its acquire", err); err != nil {
			return err
		}
		if _, err := e.a.TryAcquire(ctx, late); err == nil {
			e.reclaim(ctx, e.a, late)
			return errors.New("the late request was granted")
		}
		h, err := e.grab(ctx, e.c, late.Name, e.longTTL)
		if err != nil {
			return fmt.Errorf("the name is not free afterwards: %w", err)
		}
		if err := h.release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func cancelled(ctx context.Context, e *env) error {
	dead, cancel := context.WithCancel(ctx)
	cancel()
	r := e.request(e.name(), e.longTTL)
	start := time.Now()
	_, err := e.a.TryAcquire(dead, r)
	took := time.Since(start)
	e.reclaim(ctx, e.a, r)
	switch {
	case !errors.Is(err, context.Canceled):
		return fmt.Errorf("it returned %w", orNil(err))
	case took > 5*time.Second:
		return fmt.Errorf("it returned after %v", took)
	}
	h, err := e.grab(ctx, e.b, r.Name, e.longTTL)
	if err != nil {
		return fmt.Errorf("something was left behind: %w", err)
	}
	return h.release(ctx)
}

// cancelledMidway cancels attempts before, while and after they are sent.
func cancelledMidway(ctx context.Context, e *env) error {
	const rounds = 60
	typical, err := e.timeOne(ctx)
	if err != nil {
		return err
	}
	var used []string
	for i := range rounds {
		r := e.request(e.name(), e.longTTL)
		used = append(used, r.Name)
		bound := typical * time.Duration(i%6) / 3
		began := time.Now()
		short, cancel := context.WithTimeout(ctx, bound)
		_, err := e.a.TryAcquire(short, r)
		// A client that looks at the deadline may be faster than the context's timer.
		ended := short.Err() != nil || time.Since(began) >= bound
		cancel()
		if err != nil && !ended {
			return err
		}
		e.reclaim(ctx, e.a, r)
	}
	pause(ctx, max(2*settle, 10*typical)) // for what is still on its way
	for _, name := range used {
		h, err := e.grab(ctx, e.b, name, e.longTTL)
		if err != nil {
			return fmt.Errorf("something was left behind: %w", err)
		}
		if err := h.release(ctx); err != nil {
			return err
		}
	}
	return nil
}

// timeOne measures an attempt, the fastest of some.
func (e *env) timeOne(ctx context.Context) (time.Duration, error) {
	best := time.Second
	for range 5 {
		start := time.Now()
		h, err := e.take(ctx)
		if err != nil {
			return 0, err
		}
		best = min(best, time.Since(start))
		if err := h.release(ctx); err != nil {
			return 0, err
		}
	}
	return max(best, time.Microsecond), nil
}

func closed(ctx context.Context, e *env) error {
	d, err := openOne(ctx, e.Config)
	if err != nil {
		return err
	}
	h, err := e.grab(ctx, d, e.name(), e.ttl)
	if err != nil {
		return err
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	r := e.request(e.name(), e.ttl)
	if _, err := d.TryAcquire(ctx, r); err == nil {
		return errors.New("TryAcquire succeeded")
	}
	if _, err := d.Renew(ctx, h.g); err == nil {
		return errors.New("Renew succeeded")
	}
	if err := d.Release(ctx, drivers.Grant{Name: r.Name, Owner: r.Owner}); err == nil {
		return errors.New("Release succeeded")
	}
	if w, ok := d.(drivers.Waiter); ok {
		if _, err := w.Acquire(ctx, r); err == nil {
			return errors.New("Acquire succeeded")
		}
	}
	if ctx.Err() != nil {
		return errors.New("a call ended only with its context")
	}
	other, err := e.grab(ctx, e.b, r.Name, e.longTTL)
	if err != nil {
		return fmt.Errorf("through another client: %w", err)
	}
	return other.release(ctx)
}

// trickyNames are in pairs or groups that a careless mapping makes one.
func trickyNames(prefix string) []string {
	long := strings.Repeat("x", drivers.MaxName-1-len(prefix))
	tails := []string{
		"a", "A", "a ", " a", "a.", "a/", "/a", "a//", "a/b", "a%2Fb", "a%2fb", "a%252Fb", "a\\b", "a:b", "a|b", "a,b", "a;b",
		"a/.", "a/..", "a/./b", "a/../b", "{a}", "{a}b", "{}a", "a{", "a}", "a*", "a?", "a[b]", "a'b", `a"b`, "a--b", "a`b", "$a", "${a}", "a#b", "a&b", "a=b", "a+b", "a b", "a%20b",
		"a\x00", "a\x00b", "a\x01", "a\n", "a\r\n", "a\t", "\xff", "\xfe", "a\xc3", "a\xef\xbf\xbd",
		"\u00e9", "e\u0301", "\u00df", "ss", "SS", "\u0130", "i", "I", "\u2126", "\u03a9", "\u200b", "\u202e", "\ud55c", "\U0001f512", "\ufeff",
		"b", "b/lock", "b-lock", "b:token", "b:fence", "b.lock", "1", "01", "1.0", "0000000001",
		long[:200], long[:255-len(prefix)], long[:256-len(prefix)], long[:300], long + "0", long + "1",
	}
	for i, tail := range tails {
		tails[i] = prefix + tail
	}
	return tails
}

func namesDistinct(ctx context.Context, e *env) error {
	all := trickyNames(fmt.Sprintf("%sn%d-", e.Prefix, names.Add(1)))
	var holds []*hold
	for i, name := range all {
		h, err := e.try(ctx, e.a, name, e.longTTL)
		if err != nil {
			return fmt.Errorf("%q, while %d other names are held: %w", short(name), i, err)
		}
		holds = append(holds, h)
	}
	for i, h := range holds { // every second is released; none of the others may go with it
		if i%2 == 1 {
			if err := h.release(ctx); err != nil {
				return fmt.Errorf("%q: %w", short(all[i]), err)
			}
		}
	}
	for i, h := range holds {
		if i%2 == 0 {
			if err := h.refuses(ctx, e.b); err != nil {
				return fmt.Errorf("%q, after other names were released: %w", short(all[i]), err)
			}
			if err := h.release(ctx); err != nil {
				return fmt.Errorf("%q: %w", short(all[i]), err)
			}
		}
	}
	return nil
}

func short(name string) string {
	if len(name) > 60 {
		return fmt.Sprintf("%s…%s (%d bytes)", name[:30], name[len(name)-4:], len(name))
	}
	return name
}

func inspect(ctx context.Context, e *env) error {
	i, ok := e.b.(drivers.Inspector)
	if !ok {
		return &absent{e.Name + " has no drivers.Inspector"}
	}
	r := e.request(e.name(), e.longTTL)
	r.Note = "pid 7 @ host-ü " + strings.Repeat("n", 480)
	if _, err := i.Inspect(ctx, r.Name); !errors.Is(err, drivers.ErrNotHeld) {
		return fmt.Errorf("of a name never used it returned %w", orNil(err))
	}
	h, err := e.send(ctx, e.a, e.a.TryAcquire, r)
	if err != nil {
		return err
	}
	who, err := i.Inspect(ctx, r.Name)
	switch {
	case err != nil:
		return fmt.Errorf("of a held name: %w", err)
	case who.Owner != "" && who.Owner != r.Owner:
		return fmt.Errorf("it tells owner %q in place of %q", who.Owner, r.Owner)
	case who.Note != r.Note:
		return fmt.Errorf("it tells the note %q in place of %q", short(who.Note), short(r.Note))
	case who.Token != 0 && who.Token != h.g.Token:
		return fmt.Errorf("it tells token %d in place of %d", who.Token, h.g.Token)
	case who.Remaining < 0 || who.Remaining > h.ttl+e.slack:
		return fmt.Errorf("it tells %v remaining of %v", who.Remaining, h.ttl)
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	if _, err := i.Inspect(ctx, r.Name); !errors.Is(err, drivers.ErrNotHeld) {
		return fmt.Errorf("after the release it returned %w", orNil(err))
	}
	return nil
}
