package pglock

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/drivers"
)

// Inspect implements drivers.Inspector.
func (d *CAS) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	if err := drivers.CheckName(name); err != nil {
		return drivers.Holder{}, err
	}
	if d.closed.Load() {
		return drivers.Holder{}, drivers.ErrClosed
	}
	var h drivers.Holder
	var note []byte
	var remaining int64
	err := d.row(ctx, d.inspect, []any{d.key(name)}, &h.Owner, &note, &h.Token, &remaining)
	if errors.Is(err, pgx.ErrNoRows) {
		return drivers.Holder{}, drivers.ErrNotHeld
	}
	h.Note, h.Remaining = string(note), time.Duration(remaining)*time.Microsecond
	return h, err
}

// Inspect implements drivers.Inspector. It opens a connection. Of a holder in
// another process it tells the owner, the note and the token only if the holder
// asked for a token; the remaining time is known of this driver's own alone.
func (d *Advisory) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	if err := drivers.CheckName(name); err != nil {
		return drivers.Holder{}, err
	}
	if d.isClosed() {
		return drivers.Holder{}, drivers.ErrClosed
	}
	var h drivers.Holder
	err := d.aside(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		h, err = d.inspectRow(ctx, conn, name)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return drivers.Holder{}, drivers.ErrNotHeld
	}
	return h, d.explain(ctx, err)
}

func (d *Advisory) inspectRow(ctx context.Context, conn *pgx.Conn, name string) (drivers.Holder, error) {
	var pid uint32
	var told bool
	var h drivers.Holder
	var note []byte
	sql := d.statement("advisory_inspect")
	err := conn.QueryRow(ctx, sql, pgx.QueryExecModeExec, d.key(name)).Scan(&pid, &told, &h.Owner, &note, &h.Token)
	if err != nil {
		return drivers.Holder{}, err
	}
	if own, ok := d.own(name, pid); ok {
		return own, nil
	}
	if !told {
		return drivers.Holder{}, nil
	}
	h.Note = string(note)
	return h, nil
}

// own is what this driver knows about a hold on one of its sessions.
func (d *Advisory) own(name string, pid uint32) (drivers.Holder, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.holds[name]
	if h == nil || h.session.conn == nil || h.session.conn.PID() != pid {
		return drivers.Holder{}, false
	}
	return h.holder(), true
}

func (d *Advisory) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Check implements drivers.Checker.
func (d *CAS) Check(ctx context.Context) (drivers.Report, error) {
	if d.closed.Load() {
		return drivers.Report{}, drivers.ErrClosed
	}
	bounded, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	conn, err := d.pool.Acquire(bounded)
	if err != nil {
		return drivers.Report{}, d.explain(ctx, err)
	}
	defer conn.Release()
	r, err := d.check(bounded, conn.Conn(), d.Guarantees())
	r.Assumptions = append(r.Assumptions, "the database's clock does not jump forward")
	return r, d.explain(ctx, err)
}

// Check implements drivers.Checker. It opens a connection.
func (d *Advisory) Check(ctx context.Context) (drivers.Report, error) {
	if d.isClosed() {
		return drivers.Report{}, drivers.ErrClosed
	}
	var r drivers.Report
	err := d.aside(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		r, err = d.check(ctx, conn, d.Guarantees())
		return err
	})
	r.Assumptions = append(r.Assumptions, "the server runs on: its restart frees all locks before their holders notice")
	if d.sessionPooler {
		r.Assumptions = append(r.Assumptions, "the pooler keeps one session for each client (lock_pooler=session)")
	}
	return r, d.explain(ctx, err)
}

func (p *place) check(ctx context.Context, conn *pgx.Conn, made drivers.Guarantee) (drivers.Report, error) {
	r := drivers.Report{Product: "postgres", Servers: p.addrs}
	if _, err := p.examineServer(ctx, conn.PgConn()); err != nil {
		return r, err
	}
	if err := p.examineTable(ctx, conn); err != nil {
		return r, err
	}
	r.Version = conn.PgConn().ParameterStatus("server_version")
	for _, g := range drivers.Guarantees {
		promise := drivers.Promise{Guarantee: g, Made: made.Has(g)}
		if !promise.Made {
			promise.Why = "postgres " + p.addr() + ": " + notPromised[g]
		}
		r.Promises = append(r.Promises, promise)
	}
	r.Assumptions = []string{
		"no row of " + p.table + " is deleted, restored from a backup or lost in a failover",
		"all programs that share a name use this database, table, lock_prefix and lock_mode",
	}
	return r, nil
}

var notPromised = map[drivers.Guarantee]string{
	drivers.Durable: "not read yet: synchronous_commit, fsync, full_page_writes and the standbys",
	drivers.Fair:    "nobody keeps the order of waiters",
	drivers.Prompt:  "waiters poll",
}
