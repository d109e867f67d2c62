package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/drivers"
)

const (
	// perSession bounds what the end of one session can cost.
	perSession = 256
	// spread is how many sessions share the grants with a token, each of which
	// keeps its session busy for a commit.
	spread = 4
	// minSilence and maxSilence are the limits of idle_session_timeout: a few
	// round trips, and 31 bits of milliseconds.
	minSilence = 100 * time.Millisecond
	maxSilence = 24 * 24 * time.Hour
	// graves is how many released owners are remembered.
	graves = 4096
)

// Advisory is the driver of lock_mode=advisory: advisory locks on sessions of
// its own.
type Advisory struct {
	place
	config        *pgx.ConnConfig
	maxHeld       int
	sessionPooler bool
	prepared      map[string]string // the statements of a lock session
	running       sync.WaitGroup    // the sessions

	mu       sync.Mutex
	closed   bool
	holds    map[string]*hold // by name: what is held or asked for
	owners   map[string]*hold // the same by owner
	sessions map[class][]*session
	dead     graveyard
	losses   *losses // nil while nobody watches
}

// A class of grants shares sessions.
type class struct {
	silence time.Duration // after which the server ends the session
	fenced  bool          // a plain grant never waits for the commit of another one's token
}

// NewAdvisory makes a driver that opens its sessions with the caller's
// configuration, which must come from pgx.ParseConfig. It returns when the
// server has answered and the table was found.
func NewAdvisory(ctx context.Context, config *pgx.ConnConfig, o *Options) (*Advisory, error) {
	if config == nil || config.BuildFrontend == nil {
		return nil, &drivers.ConfigError{Key: "config", Problem: "does not come from pgx", Fix: "use pgx.ParseConfig"}
	}
	opts, err := o.complete()
	if err != nil {
		return nil, err
	}
	d := &Advisory{
		place: newPlace(config, opts), config: config.Copy(),
		maxHeld: opts.MaxHeld, sessionPooler: opts.SessionPooler,
		holds: map[string]*hold{}, owners: map[string]*hold{}, sessions: map[class][]*session{},
		prepared: map[string]string{},
	}
	for _, name := range []string{stmtLock, stmtFenced, stmtInsert, stmtUnlock, stmtSweep, stmtWiden} {
		d.prepared[name] = d.statement(name)
	}
	if err := d.aside(ctx, d.examineSession); err != nil {
		return nil, d.explain(ctx, err)
	}
	return d, nil
}

// examineSession looks at the server through a session like those that will
// hold the locks.
func (d *Advisory) examineSession(ctx context.Context, conn *pgx.Conn) error {
	if err := d.admitSession(ctx, conn.PgConn(), openBound); err != nil {
		return err
	}
	return d.makeTable(ctx, conn)
}

// aside runs f on a connection for itself, within requestBound.
func (d *Advisory) aside(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, d.sessionConfig(openBound))
	if err != nil {
		return d.explainStart(err)
	}
	defer closeConn(conn.PgConn())
	return f(ctx, conn)
}

// Guarantees implements drivers.Driver.
func (d *Advisory) Guarantees() drivers.Guarantee { return drivers.Fencing }

// TryAcquire implements drivers.Driver.
func (d *Advisory) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := drivers.CheckName(r.Name); err != nil {
		return drivers.Grant{}, err
	}
	if err := drivers.CheckTTL(r.TTL, minSilence, maxSilence); err != nil {
		return drivers.Grant{}, err
	}
	if ctx.Err() != nil {
		return drivers.Grant{}, d.explain(ctx, ctx.Err())
	}
	h, err := d.ask(r)
	if err != nil {
		return drivers.Grant{}, err
	}
	if err := d.waitFor(ctx, h.answered); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		h.leave() // whatever the session answers
		return drivers.Grant{}, err
	}
	return h.grant()
}

// waitFor waits for an answer no longer than the caller's context and
// requestBound allow. No answer is hurried by that, or lost to the session.
func (d *Advisory) waitFor(ctx context.Context, answer <-chan struct{}) error {
	bounded, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	select {
	case <-answer:
		return nil
	case <-bounded.Done():
		return d.explain(ctx, bounded.Err())
	}
}

// ask puts a request on a session.
func (d *Advisory) ask(r drivers.Request) (*hold, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.admit(r); err != nil {
		return nil, err
	}
	h := &hold{
		d: d, name: r.Name, owner: r.Owner, note: r.Note, fenced: r.Fenced,
		answered: make(chan struct{}), gone: make(chan struct{}),
	}
	h.session = d.pick(class{roundUp(r.TTL), r.Fenced})
	h.session.holds[h] = true
	d.holds[h.name], d.owners[h.owner] = h, h
	h.request()
	return h, nil
}

// admit refuses what needs no question to the server. A session would be given
// a lock that it has already, so the driver must know its own.
func (d *Advisory) admit(r drivers.Request) error {
	switch {
	case d.closed:
		return drivers.ErrClosed
	case d.dead.has(r.Owner):
		return drivers.Lost(drivers.Taken, errors.New("released before the request arrived"))
	case d.holds[r.Name] != nil:
		h := d.holds[r.Name].holder()
		return &drivers.HeldError{Holder: h, Remaining: h.Remaining}
	case len(d.holds) >= d.maxHeld:
		return &drivers.ConfigError{
			Key: "lock_max_held", Problem: fmt.Sprintf("is reached: this driver holds %d locks", len(d.holds)),
			Fix: "hold fewer at a time, raise it together with the server's max_locks_per_transaction, or use lock_mode=cas",
		}
	}
	return nil
}

// pick chooses the session of a class with the least to do, or starts one.
func (d *Advisory) pick(c class) *session {
	var best *session
	n := 0
	for _, s := range d.sessions[c] {
		if len(s.holds) >= perSession || s.silent() {
			continue
		}
		n++
		if best == nil || s.load() < best.load() {
			best = s
		}
	}
	if best == nil || c.fenced && best.load() > 0 && n < spread {
		best = d.startSession(c)
	}
	return best
}

// roundUp keeps the number of different times to live small: three binary
// digits beside the first, an eighth more at most.
func roundUp(ttl time.Duration) time.Duration {
	ms := uint64((ttl + time.Millisecond - 1) / time.Millisecond)
	step := uint64(1) << max(0, bits.Len64(ms)-4)
	return time.Duration((ms+step-1)/step*step) * time.Millisecond
}

// Renew implements drivers.Driver. The answer of the session to anything proves
// that it is still there, and with it all its locks.
func (d *Advisory) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if err := drivers.CheckTTL(g.TTL, time.Millisecond, maxSilence); err != nil {
		return 0, err
	}
	d.mu.Lock()
	h, err := d.held(g)
	if err != nil {
		d.mu.Unlock()
		return 0, err
	}
	p := h.session.prove(roundUp(g.TTL))
	d.mu.Unlock()
	if err := d.waitFor(ctx, p.answered); err != nil {
		return 0, err
	}
	if p.err != nil {
		return 0, p.err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err = d.held(g) // it may have been released meanwhile
	return h.session.silence, err
}

// held finds a grant that is neither lost nor released nor on its way out.
func (d *Advisory) held(g drivers.Grant) (*hold, error) {
	h := d.owners[g.Owner]
	switch {
	case d.closed:
		return nil, drivers.ErrClosed
	case h == nil || h.name != g.Name:
		return nil, d.ended(g)
	case h.state != held:
		return nil, drivers.Lost(drivers.Taken, nil)
	}
	return h, nil
}

// ended says why there is no such grant, as far as its State tells.
func (d *Advisory) ended(g drivers.Grant) error {
	if h, ok := g.State.(*hold); ok && errors.Is(h.end, drivers.ErrLost) {
		return h.end
	}
	return drivers.Lost(drivers.Taken, nil)
}

// Release implements drivers.Driver. It ends what this driver was granted; the
// locks of another process are out of its reach.
func (d *Advisory) Release(ctx context.Context, g drivers.Grant) error {
	d.mu.Lock()
	h := d.owners[g.Owner]
	if d.closed {
		d.mu.Unlock()
		return drivers.ErrClosed
	}
	if h == nil || h.name != g.Name {
		defer d.mu.Unlock()
		d.dead.add(g.Owner)
		return d.ended(g)
	}
	h.leave()
	d.mu.Unlock()
	if err := d.waitFor(ctx, h.gone); err != nil {
		return err // it goes on nevertheless
	}
	return h.released()
}

// Close implements drivers.Driver. It ends the sessions, and with them at once
// every grant that is still held.
func (d *Advisory) Close() error {
	d.mu.Lock()
	d.closed = true
	for _, sessions := range d.sessions {
		for _, s := range sessions {
			s.stop()
		}
	}
	d.mu.Unlock()
	d.running.Wait() // each ends within its own bound
	return nil
}

// Watch implements drivers.Watcher: it reports the grants of a session as soon
// as its connection ends, and if the driver ends it before the server frees
// them; that is not waited for longer than a second.
func (d *Advisory) Watch(ctx context.Context, lost func(owner string, err error)) error {
	l := &losses{more: make(chan struct{}, 1)}
	d.mu.Lock()
	d.losses = l
	d.mu.Unlock()
	for {
		select {
		case <-l.more:
		case <-ctx.Done():
			d.mu.Lock()
			defer d.mu.Unlock()
			d.losses = nil
			for _, e := range l.take() {
				close(e.told) // there is nobody to tell
			}
			return ctx.Err()
		}
		d.mu.Lock()
		list := l.take()
		d.mu.Unlock()
		for _, e := range list {
			for _, h := range e.lost {
				lost(h.owner, h.end)
			}
			close(e.told)
		}
	}
}

// losses are the ends of sessions that were not reported yet.
type losses struct {
	list []ending
	more chan struct{}
}

// An ending of a session is what was lost with it.
type ending struct {
	lost []*hold
	told chan struct{} // closed when they were reported
}

func (l *losses) add(e ending) {
	l.list = append(l.list, e)
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *losses) take() []ending {
	list := l.list
	l.list = nil
	return list
}

// report has the watcher, if there is one, told of lost grants. The channel is
// closed when that is done.
func (d *Advisory) report(lost []*hold) <-chan struct{} {
	e := ending{lost, make(chan struct{})}
	if d.losses == nil || len(lost) == 0 {
		close(e.told)
	} else {
		d.losses.add(e)
	}
	return e.told
}

// A graveyard remembers the last owners that were released before they asked.
type graveyard struct {
	owners map[string]bool
	ring   []string
	next   int
}

func (y *graveyard) has(owner string) bool { return y.owners[owner] }

func (y *graveyard) add(owner string) {
	if y.owners == nil {
		y.owners, y.ring = map[string]bool{}, make([]string, graves)
	}
	if y.owners[owner] {
		return
	}
	delete(y.owners, y.ring[y.next])
	y.owners[owner] = true
	y.ring[y.next] = owner
	y.next = (y.next + 1) % graves
}
