package pglock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkit/lock/drivers"
)

// found is what the driver sees of the server when it opens.
type found struct {
	pooled  bool          // another session than that which was opened
	silence time.Duration // idle_session_timeout
}

// makeTable makes sure that the table is there. It is called when a driver
// opens and never again: a table that vanishes later took its tokens with it.
func (p *place) makeTable(ctx context.Context, conn *pgx.Conn) error {
	var missing *missingTable
	err := p.examineTable(ctx, conn)
	if !p.create || !errors.As(err, &missing) {
		return err
	}
	if err := p.createTable(ctx, conn); err != nil {
		return err
	}
	return p.examineTable(ctx, conn)
}

// examineServer asks for its version, its role and the session.
func (p *place) examineServer(ctx context.Context, conn *pgconn.PgConn) (found, error) {
	r := conn.ExecParams(ctx, p.statement("server"), nil, nil, nil, nil).Read()
	if r.Err != nil {
		return found{}, r.Err
	}
	var row [4]string
	for i, v := range r.Rows[0] {
		row[i] = string(v)
	}
	pid, standby := row[0], row[2] == "t"
	version, _ := strconv.Atoi(row[1])
	silence, _ := strconv.ParseInt(row[3], 10, 64)
	switch {
	case version < minVersion:
		return found{}, tooOld(p.addr(), strconv.Itoa(version/10000))
	case standby:
		return found{}, drivers.Unavailable(fmt.Errorf("postgres %s is a standby: name the primary, or all servers with target_session_attrs=primary", p.addr()))
	}
	own := strconv.FormatUint(uint64(conn.PID()), 10)
	return found{pooled: pid != own, silence: time.Duration(silence) * time.Millisecond}, nil
}

func tooOld(addr, version string) error {
	return &drivers.ConfigError{Key: "host", Value: addr, Problem: "runs Postgres " + version, Fix: "use Postgres 14 or later"}
}

// A missingTable is what explain makes a *ConfigError of.
type missingTable struct{ table string }

func (m *missingTable) Error() string { return "there is no table " + m.table }

// examineTable makes sure that the table is one of lockkit's and may be used.
func (p *place) examineTable(ctx context.Context, conn *pgx.Conn) error {
	var permanent, allowed bool
	var user string
	err := conn.QueryRow(ctx, p.statement("table"), pgx.QueryExecModeExec, p.quoted).Scan(&permanent, &user, &allowed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return &missingTable{p.table}
	case err != nil:
		return err
	case !permanent:
		return &drivers.ConfigError{Key: "lock_table", Value: p.table, Problem: "is unlogged or temporary and would forget its tokens", Fix: "ALTER TABLE " + p.table + " SET LOGGED"}
	case !allowed:
		return &drivers.ConfigError{Key: "user", Value: user, Problem: "may not use table " + p.table, Fix: "GRANT SELECT, INSERT, UPDATE ON " + p.table + " to it"}
	}
	_, err = conn.Exec(ctx, p.statement("columns"), pgx.QueryExecModeExec)
	return err
}

// createTable lets one process create at a time: two CREATE TABLE IF NOT EXISTS
// at once may fail. The statements of one simple query are one transaction.
func (p *place) createTable(ctx context.Context, conn *pgx.Conn) error {
	const once = "SELECT pg_advisory_xact_lock(hashtext('lockkit'), hashtext('create'));\n"
	_, err := conn.PgConn().Exec(ctx, once+Schema(p.table)).ReadAll()
	return err
}
