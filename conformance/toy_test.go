package conformance_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A flaw is what is wrong with a toy.
type flaw string

// A service is a toy lock service. Without a flaw it keeps every promise.
type service struct {
	mu      sync.Mutex
	flaw    flaw
	slots   map[string]*slot
	graves  map[string]bool
	token   drivers.Token
	clients int
}

type slot struct {
	by          *client
	owner, note string
	token       drivers.Token
	until       time.Time
	queue       []*ticket
}

type ticket struct {
	by      *client
	r       drivers.Request
	granted chan drivers.Grant
}

// A client is a driver of a service.
type client struct {
	*service
	id     int
	silent bool // cut off, see sessions
	closed chan struct{}
	once   sync.Once
}

func newService(f flaw) *service {
	return &service{flaw: f, slots: map[string]*slot{}, graves: map[string]bool{}}
}

func (s *service) open(context.Context) (drivers.Driver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients++
	return &client{service: s, id: s.clients, closed: make(chan struct{})}, nil
}

// restart forgets who holds; the counter is on its disk.
func (s *service) restart(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.slots)
	if s.flaw == forgetsTokens {
		s.token = 0
	}
	return nil
}

// silence cuts a client of a service with sessions off. When it is back, what
// it held has ended if its time was over.
func silence(d drivers.Driver) (undo func(), err error) {
	c := d.(*client)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for key := range c.slots {
			c.slot(key)
		}
		c.silent = false
	}, nil
}

func (c *client) Guarantees() drivers.Guarantee {
	if c.flaw == secretTokens {
		return drivers.Fair | drivers.Prompt
	}
	return drivers.Correctness | drivers.Fair | drivers.Prompt
}

func (c *client) key(name string) string {
	switch c.flaw {
	case foldsNames:
		return strings.ToLower(name)
	case cutsNames:
		return name[:min(255, len(name))]
	case cleansNames:
		return strings.ReplaceAll(name, "//", "/")
	case unescapedNames:
		return strings.ReplaceAll(name, "%2F", "/")
	case cStrings:
		key, _, _ := strings.Cut(name, "\x00")
		return key
	case trimsNames:
		return strings.TrimSpace(name)
	}
	return name
}

// admit is called at the start of every attempt.
func (c *client) admit(ctx context.Context, r *drivers.Request) error {
	if c.isClosed() && c.flaw != worksClosed {
		return drivers.ErrClosed
	}
	if err := ctx.Err(); err != nil && c.flaw != deafToCancel {
		if c.flaw == storesCancelled {
			go func() { time.Sleep(time.Millisecond); c.mu.Lock(); defer c.mu.Unlock(); c.give(*r) }()
		}
		return err
	}
	if r.TTL <= 0 && c.flaw == defaultsTTL {
		r.TTL = time.Second
	}
	if err := drivers.CheckTTL(r.TTL, 1, drivers.MaxTTL); err != nil {
		if c.flaw == plainConfigError {
			return errors.New("bad TTL")
		}
		return err
	}
	if c.flaw == refusesLongNames && len(r.Name) > 255 {
		return &drivers.ConfigError{Key: "name", Problem: "is too long"}
	}
	return drivers.CheckName(r.Name)
}

func (c *client) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// slot finds a name's state. Whoever is first in the queue of a free one has it.
func (s *service) slot(key string) *slot {
	sl := s.slots[key]
	if sl == nil {
		sl = &slot{}
		s.slots[key] = sl
	}
	if sl.owner != "" && s.ended(sl) {
		if s.flaw == fallsAfterExpiry {
			s.token -= 10
		}
		sl.owner = ""
		s.serve(sl)
	}
	return sl
}

func (s *service) ended(sl *slot) bool {
	switch s.flaw {
	case noExpiry:
		return false
	case clampsTTL:
		return time.Until(sl.until) < 100*time.Millisecond
	case sessions:
		return time.Now().After(sl.until) && (sl.by.silent || sl.by.isClosed())
	case outlivesClose:
		return time.Now().After(sl.until) && !sl.by.isClosed()
	}
	return time.Now().After(sl.until)
}

func (s *service) serve(sl *slot) {
	if len(sl.queue) == 0 {
		return
	}
	next := 0
	if s.flaw == lastComeFirst {
		next = len(sl.queue) - 1
	}
	t := sl.queue[next]
	if s.flaw == pollsOnly {
		return
	}
	sl.queue = slices.Delete(sl.queue, next, next+1)
	t.granted <- t.by.give(t.r)
}

// give stores a grant; the caller has seen that the name is free.
func (c *client) give(r drivers.Request) drivers.Grant {
	sl := c.slots[c.key(r.Name)]
	if sl == nil {
		sl = &slot{}
	}
	g := drivers.Grant{Name: r.Name, Owner: r.Owner, TTL: r.TTL, Since: time.Now(), Token: c.newToken(r, sl)}
	if c.flaw == futureSince {
		g.Since = g.Since.Add(time.Hour)
	}
	if c.flaw == statefulRelease {
		g.State = "needed"
	}
	if c.flaw == reportsLessTTL {
		g.TTL /= 2
	}
	if c.flaw == notStored {
		return g
	}
	sl.by, sl.owner, sl.note, sl.token, sl.until = c, r.Owner, r.Note, g.Token, time.Now().Add(r.TTL)
	c.slots[c.key(r.Name)] = sl
	return g
}

func (c *client) newToken(r drivers.Request, sl *slot) drivers.Token {
	switch c.flaw {
	case randomToken:
		return drivers.Token(rand.Int64N(1<<40) + 1) //nolint:gosec // a toy
	case tokenPerClient:
		return drivers.Token(c.id)
	case tokenPerHold:
		return sl.token + 1 // slots of free names are forgotten
	case noToken:
		return 0
	case tokenOnlyTried:
		if !r.Fenced {
			return 0
		}
	}
	c.token++
	return c.token
}

// TryAcquire is tryAcquire with the time that the reply takes.
func (c *client) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	g, err := c.tryAcquire(ctx, r)
	c.reply(err)
	if err == nil && (c.flaw == countsFromReply || c.flaw == countsFromSoonReply) {
		g.Since = time.Now()
	}
	return g, err
}

// reply takes the time of a reply from a service that is not in the process.
func (c *client) reply(err error) {
	switch {
	case c.flaw == distant || c.flaw == countsFromSoonReply:
		time.Sleep(2 * time.Millisecond)
	case c.flaw == countsFromReply && err == nil:
		time.Sleep(slowReply)
	}
}

// slowReply is longer than the margin of any TTL that the checks let end.
const slowReply = 100 * time.Millisecond

func (c *client) tryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := c.admit(ctx, &r); err != nil {
		return drivers.Grant{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var early drivers.Token
	if c.flaw == tokenBeforeGrant {
		c.token++
		early = c.token
		c.mu.Unlock()
		time.Sleep(rand.N(2 * time.Millisecond)) //nolint:gosec // a toy
		c.mu.Lock()
	}
	if c.graves[r.Owner] {
		return drivers.Grant{}, drivers.Lost(drivers.Taken, nil)
	}
	sl := c.slot(c.key(r.Name))
	if sl.owner != "" && c.flaw != everyoneHolds && (c.flaw != reentrant || sl.by != c) {
		return drivers.Grant{}, c.refuse(sl)
	}
	if c.flaw == racyAcquire {
		c.mu.Unlock()
		time.Sleep(rand.N(time.Millisecond)) //nolint:gosec // a toy
		c.mu.Lock()
	}
	g := c.give(r)
	if early != 0 {
		g.Token = early
	}
	return g, nil
}

func (c *client) refuse(sl *slot) error {
	if c.flaw == plainHeld {
		return drivers.ErrHeld
	}
	h := sl.holder()
	if c.flaw == namesAsker {
		h.Owner = "someone"
	}
	return &drivers.HeldError{Holder: h, Remaining: h.Remaining}
}

func (sl *slot) holder() drivers.Holder {
	return drivers.Holder{Owner: sl.owner, Note: sl.note, Token: sl.token, Remaining: max(0, time.Until(sl.until))}
}

func (c *client) Acquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	var held *drivers.HeldError
	if c.flaw != queuesAlways {
		g, err := c.TryAcquire(ctx, r)
		if !errors.As(err, &held) {
			return g, err
		}
	}
	if c.flaw == tokenOnlyTried {
		r.Fenced = false
	}
	t := &ticket{by: c, r: r, granted: make(chan drivers.Grant, 1)}
	c.mu.Lock()
	sl := c.slot(c.key(r.Name))
	sl.queue = append(sl.queue, t)
	if sl.owner == "" && c.flaw != queuesAlways {
		c.serve(sl)
	}
	c.mu.Unlock()
	return c.wait(ctx, t)
}

func (c *client) wait(ctx context.Context, t *ticket) (drivers.Grant, error) {
	for {
		select {
		case g := <-t.granted:
			if c.flaw == pushFromReply {
				time.Sleep(slowReply)
				g.Since = time.Now()
			}
			return g, nil
		case <-ctx.Done():
			c.leave(t)
			if c.flaw == nilNil {
				return drivers.Grant{}, nil
			}
			return drivers.Grant{}, ctx.Err()
		case <-c.closed:
			c.leave(t)
			return drivers.Grant{}, drivers.ErrClosed
		case <-time.After(c.nextLook(t)):
		}
		c.look(t)
	}
}

func (c *client) nextLook(t *ticket) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	poll := t.r.Poll
	if poll == 0 {
		poll = time.Second
	}
	if c.flaw == sleepsThroughExpiry || c.flaw == queuesAlways {
		return time.Hour
	}
	return min(poll, max(time.Millisecond, time.Until(c.slots[c.key(t.r.Name)].until)))
}

func (c *client) look(t *ticket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sl := c.slot(c.key(t.r.Name))
	if i := slices.Index(sl.queue, t); i >= 0 && sl.owner == "" {
		sl.queue = slices.Delete(sl.queue, i, i+1)
		t.granted <- c.give(t.r)
	}
}

func (c *client) leave(t *ticket) {
	if c.flaw == leavesTicket {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sl := c.slot(c.key(t.r.Name))
	if i := slices.Index(sl.queue, t); i >= 0 {
		sl.queue = slices.Delete(sl.queue, i, i+1)
	}
	if sl.owner == t.r.Owner {
		sl.owner = ""
		c.serve(sl)
	}
}

// Renew is renew with the time that the reply takes.
func (c *client) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	ttl, err := c.renew(ctx, g)
	switch {
	case c.flaw == renewalFromReply && err == nil:
		time.Sleep(slowReply)
		return ttl + slowReply, nil
	case c.flaw != countsFromReply:
		c.reply(err)
	}
	return ttl, err
}

func (c *client) renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := c.reach(ctx); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.key(g.Name)
	if old := c.slots[key]; c.flaw == revivesExpired && old != nil && old.owner == g.Owner {
		old.until = time.Now().Add(g.TTL)
	}
	sl := c.slot(key)
	switch {
	case c.flaw == renewsNothing:
		return g.TTL, nil
	case c.flaw == renewsAnyones && sl.owner != "":
	case c.flaw == takesBack && sl.owner != "", c.flaw == recreates && sl.owner == "":
		sl.by, sl.owner = c, g.Owner
	case sl.owner != g.Owner:
		return 0, drivers.Lost(drivers.Taken, nil)
	}
	if c.flaw == changesToken {
		c.token++
		sl.token = c.token
	}
	if c.flaw == adds {
		sl.until = sl.until.Add(g.TTL)
	} else {
		sl.until = time.Now().Add(g.TTL)
	}
	return g.TTL, nil
}

func (c *client) reach(ctx context.Context) error {
	if c.isClosed() && c.flaw != worksClosed {
		return drivers.ErrClosed
	}
	return ctx.Err()
}

func (c *client) Release(ctx context.Context, g drivers.Grant) error {
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.key(g.Name)
	sl := c.slot(key)
	ours := sl.owner == g.Owner || c.flaw == releasesAnyones || c.flaw == releasesExpired && g.TTL > 0
	if c.flaw == statefulRelease && g.State == nil || c.flaw == releasesNothing {
		return nil
	}
	if !ours {
		return c.releaseNothing(g)
	}
	if c.flaw == getThenDel {
		c.mu.Unlock()
		time.Sleep(rand.N(time.Millisecond)) //nolint:gosec // a toy
		c.mu.Lock()
	}
	if c.flaw == releasesPrefix {
		for other, s := range c.slots {
			if strings.HasPrefix(other, key) {
				s.owner = ""
			}
		}
	}
	c.free(key, sl)
	return nil
}

func (c *client) free(key string, sl *slot) {
	sl.owner = ""
	c.serve(sl)
	if sl.owner == "" && len(sl.queue) == 0 {
		delete(c.slots, key)
	}
}

func (c *client) releaseNothing(g drivers.Grant) error {
	if c.flaw != forgetsReleases {
		c.graves[g.Owner] = true
	}
	switch c.flaw {
	case neverLost:
		return nil
	case givesTokenBack:
		c.token--
	case oddRepeat:
		return errors.New("no such lock")
	}
	return drivers.Lost(drivers.Taken, nil)
}

func (c *client) Inspect(_ context.Context, name string) (drivers.Holder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sl := c.slot(c.key(name))
	if sl.owner == "" {
		return drivers.Holder{}, drivers.ErrNotHeld
	}
	h := sl.holder()
	if c.flaw == dropsNote {
		h.Note = ""
	}
	return h, nil
}

func (c *client) Watch(ctx context.Context, lost func(owner string, err error)) error {
	if c.flaw == watchesForever {
		select {}
	}
	for c.flaw == falseAlarms && ctx.Err() == nil {
		lost("any", drivers.Lost(drivers.Taken, nil))
		time.Sleep(10 * time.Millisecond)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (c *client) Close() error {
	if c.flaw == panics {
		panic("close of a closed channel")
	}
	c.once.Do(func() { close(c.closed) })
	return nil
}
