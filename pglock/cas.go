package pglock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkit/lock/drivers"
)

// minLease is far above the microseconds in which Postgres keeps time.
const minLease = 10 * time.Millisecond

// repeats is how often an attempt is made anew because someone else wrote the
// row at the same time.
const repeats = 5

// CAS is the driver of lock_mode=cas: a lease in a row.
type CAS struct {
	place
	pool    *pgxpool.Pool
	ownPool bool
	closing sync.Once
	closed  atomic.Bool

	acquire, insert, renew, release, bury, inspect string

	// unnamed: the server is reached through a pooler that hands each
	// transaction to another session, where prepared statements are not known.
	unnamed atomic.Bool
}

// NewCAS makes a driver that uses the caller's pool and never closes it. Each
// statement is a transaction of its own. It returns when the server has
// answered and the table was found.
func NewCAS(ctx context.Context, pool *pgxpool.Pool, o *Options) (*CAS, error) {
	if pool == nil {
		return nil, &drivers.ConfigError{Key: "pool", Problem: "is nil", Fix: "use pgxpool.New"}
	}
	opts, err := o.complete()
	if err != nil {
		return nil, err
	}
	d := &CAS{place: newPlace(pool.Config().ConnConfig, opts), pool: pool}
	d.acquire, d.insert = d.statement("cas_acquire"), d.statement("cas_insert")
	d.renew, d.inspect = d.statement("cas_renew"), d.statement("cas_inspect")
	d.release, d.bury = d.statement("cas_release"), d.statement("cas_bury")
	bounded, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	if err := d.open(bounded); err != nil {
		return nil, d.explain(ctx, err)
	}
	return d, nil
}

func (d *CAS) open(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	found, err := d.examineServer(ctx, conn.Conn().PgConn())
	if err != nil {
		return err
	}
	d.unnamed.Store(found.pooled)
	return d.makeTable(ctx, conn.Conn())
}

// Guarantees implements drivers.Driver.
func (d *CAS) Guarantees() drivers.Guarantee { return drivers.Fencing }

// TryAcquire implements drivers.Driver.
func (d *CAS) TryAcquire(ctx context.Context, r drivers.Request) (drivers.Grant, error) {
	if err := d.admit(r); err != nil {
		return drivers.Grant{}, err
	}
	var err error
	for range repeats {
		var token drivers.Token
		if token, err = d.tryOnce(ctx, r); err == nil {
			return drivers.Grant{Name: r.Name, Owner: r.Owner, Token: token, TTL: r.TTL}, nil
		}
		if !errors.Is(err, errAgain) {
			break
		}
	}
	if errors.Is(err, errAgain) {
		return drivers.Grant{}, &drivers.HeldError{} // by others, in turn
	}
	return drivers.Grant{}, err
}

func (d *CAS) admit(r drivers.Request) error {
	if d.closed.Load() {
		return drivers.ErrClosed
	}
	if err := drivers.CheckName(r.Name); err != nil {
		return err
	}
	return drivers.CheckTTL(r.TTL, minLease, drivers.MaxTTL)
}

// errAgain: the row was written by someone else in between.
var errAgain = errors.New("the row has just changed")

// tryOnce asks for the row, and adds it if there is none.
func (d *CAS) tryOnce(ctx context.Context, r drivers.Request) (drivers.Token, error) {
	var a answer
	args := []any{d.key(r.Name), r.Owner, []byte(r.Note), microseconds(r.TTL)}
	err := d.row(ctx, d.acquire, args, &a.granted, &a.mode, &a.dead, &a.owner, &a.note, &a.token, &a.remaining)
	if err == nil {
		return d.verdict(a)
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return 0, err
	}
	var first drivers.Token
	err = d.row(ctx, d.insert, args, &first)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errAgain
	}
	return first, err
}

// An answer is what cas_acquire comes back with.
type answer struct {
	granted   *int64
	mode      string
	dead      bool
	owner     *string
	note      []byte
	token     int64
	remaining *int64 // microseconds
}

func (d *CAS) verdict(a answer) (drivers.Token, error) {
	switch {
	case a.granted != nil:
		return drivers.Token(*a.granted), nil
	case a.mode != "cas":
		return 0, d.wrongMode("cas", a.mode)
	case a.dead:
		return 0, drivers.Lost(drivers.Taken, errors.New("released before the request arrived"))
	case a.owner == nil || a.remaining == nil || *a.remaining <= 0:
		return 0, errAgain // it was free before the attempt, and then taken
	}
	h := drivers.Holder{Owner: *a.owner, Note: string(a.note), Token: drivers.Token(a.token)}
	h.Remaining = time.Duration(*a.remaining) * time.Microsecond
	return 0, &drivers.HeldError{Holder: h, Remaining: h.Remaining}
}

// Renew implements drivers.Driver.
func (d *CAS) Renew(ctx context.Context, g drivers.Grant) (time.Duration, error) {
	if d.closed.Load() {
		return 0, drivers.ErrClosed
	}
	if err := drivers.CheckTTL(g.TTL, minLease, drivers.MaxTTL); err != nil {
		return 0, err
	}
	n, err := d.exec(ctx, d.renew, d.key(g.Name), g.Owner, microseconds(g.TTL))
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, drivers.Lost(drivers.Taken, nil)
	}
	return g.TTL, nil
}

// Release implements drivers.Driver. It works from any process.
func (d *CAS) Release(ctx context.Context, g drivers.Grant) error {
	if d.closed.Load() {
		return drivers.ErrClosed
	}
	args := []any{d.key(g.Name), g.Owner}
	for range repeats {
		var ended bool
		err := d.row(ctx, d.release, args, &ended)
		if errors.Is(err, pgx.ErrNoRows) {
			err = d.row(ctx, d.bury, args, new(bool))
			if errors.Is(err, pgx.ErrNoRows) {
				continue // someone else has just added the name: it may have been the owner
			}
		}
		switch {
		case err != nil:
			return err
		case !ended:
			return drivers.Lost(drivers.Taken, nil)
		}
		return nil
	}
	return drivers.Lost(drivers.Taken, nil) // the name is used in another mode
}

// Close implements drivers.Driver. Leases that are still held run out.
func (d *CAS) Close() error {
	d.closing.Do(func() {
		d.closed.Store(true)
		if d.ownPool {
			closePool(d.pool)
		}
	})
	return nil
}

// closePool waits for the pool's connections, but not for a server that hangs.
func closePool(pool *pgxpool.Pool) {
	done := make(chan struct{})
	go func() {
		pool.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(openBound):
	}
}

// row runs a statement that comes back with one row at most.
func (d *CAS) row(ctx context.Context, sql string, args []any, into ...any) error {
	return d.repeat(ctx, func(ctx context.Context) error {
		return d.pool.QueryRow(ctx, sql, d.how(args)...).Scan(into...)
	})
}

// exec runs a statement and tells how many rows it changed.
func (d *CAS) exec(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = d.repeat(ctx, func(ctx context.Context) error {
		tag, err := d.pool.Exec(ctx, sql, d.how(args)...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// how puts the protocol before the arguments. Prepared statements save the
// server parsing and planning; unnamed ones work through every pooler.
func (d *CAS) how(args []any) []any {
	mode := pgx.QueryExecModeCacheStatement
	if d.unnamed.Load() {
		mode = pgx.QueryExecModeExec
	}
	return append([]any{mode}, args...)
}

// repeat runs a statement again that the server has rolled back for others'
// sake, or that it did not know. All together is bounded.
func (d *CAS) repeat(ctx context.Context, run func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	var err error
	for range repeats {
		err = run(bounded)
		switch {
		case lostPrepared(err):
			d.unnamed.Store(true)
		case !rolledBack(err):
			return d.explain(ctx, err)
		}
	}
	return d.explain(ctx, err)
}

func microseconds(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
