package pglock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkit/lock/drivers"
)

// SQLSTATEs by name.
const (
	serialization   = "40001"
	deadlock        = "40P01"
	noStatement     = "26000"
	doubleStatement = "42P05"
	undefinedTable  = "42P01"
	undefinedColumn = "42703"
	undefinedObject = "42704"
	noPrivilege     = "42501"
	noSchema        = "3F000"
	noDatabase      = "3D000"
	protocol        = "08P01"
)

// rolledBack: the server has undone a statement for the sake of others.
func rolledBack(err error) bool { return is(err, serialization, deadlock) }

// lostPrepared: a pooler has switched sessions under a prepared statement.
// Nothing was executed.
func lostPrepared(err error) bool { return is(err, noStatement, doubleStatement) }

func is(err error, codes ...string) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	for _, code := range codes {
		if pe.Code == code {
			return true
		}
	}
	return false
}

// passing are the classes of SQLSTATEs that tell of trouble that may pass:
// connection, rollback, resources, locks and limits, an administrator, system.
var passing = []string{"08", "25", "40", "53", "55", "57", "58", "XX"}

// explain says what an error of pgx means to the user. ctx is the caller's.
func (p *place) explain(ctx context.Context, err error) error {
	var known *drivers.ConfigError
	var missing *missingTable
	switch {
	case err == nil, errors.Is(err, pgx.ErrNoRows), errors.Is(err, drivers.ErrUnavailable), errors.As(err, &known):
		return err
	case errors.As(err, &missing):
		return p.noTable()
	case ctx.Err() != nil:
		return fmt.Errorf("postgres %s: %w", p.addr(), ctx.Err())
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return p.explainServer(pe)
	}
	return p.explainClient(err)
}

// explainServer deals with what the server said.
func (p *place) explainServer(pe *pgconn.PgError) error {
	refused := "is refused by postgres " + p.addr() + ": " + pe.Message
	switch {
	case pe.Code[:2] == "28":
		return &drivers.ConfigError{Key: "user", Problem: refused, Fix: "check the user and the password in the URL, and the server's pg_hba.conf"}
	case pe.Code == noDatabase:
		return &drivers.ConfigError{Key: "database", Problem: refused, Fix: "name one that exists: postgres://host/database"}
	case pe.Code == undefinedTable, pe.Code == noSchema:
		return p.noTable()
	case pe.Code == undefinedColumn:
		return &drivers.ConfigError{Key: "lock_table", Value: p.table, Problem: "is not a table of lockkit, or of another version", Fix: "name another one; pglock.Schema shows what is needed"}
	case pe.Code == noPrivilege:
		return &drivers.ConfigError{Key: "user", Problem: refused, Fix: "GRANT SELECT, INSERT, UPDATE ON " + p.table + " to it; lock_create=true needs CREATE on the schema"}
	case pe.Code == undefinedObject:
		return &drivers.ConfigError{Key: "url", Problem: refused, Fix: "correct the setting"}
	case refusesParameter(pe):
		return &drivers.ConfigError{Key: "url", Problem: refused, Fix: "leave the setting out: the pooler does not pass it on"}
	}
	err := fmt.Errorf("postgres %s: %w", p.addr(), pe)
	for _, class := range passing {
		if strings.HasPrefix(pe.Code, class) {
			return drivers.Unavailable(err)
		}
	}
	return err
}

// refusesParameter: a pooler does not take a setting of the session.
func refusesParameter(pe *pgconn.PgError) bool {
	return pe.Code == protocol && strings.Contains(pe.Message, "startup parameter")
}

// explainClient deals with what went wrong on the way.
func (p *place) explainClient(err error) error {
	var certificate *tls.CertificateVerificationError
	var network net.Error
	var op *net.OpError
	text := err.Error()
	switch {
	case errors.As(err, &certificate):
		return &drivers.ConfigError{Key: "sslrootcert", Problem: "does not vouch for postgres " + p.addr() + ": " + certificate.Error(), Fix: "name the certificate of the server's authority"}
	case strings.Contains(text, "server refused TLS"):
		return &drivers.ConfigError{Key: "sslmode", Problem: "asks for TLS, which postgres " + p.addr() + " refuses", Fix: "turn on ssl at the server, or use sslmode=disable"}
	case strings.Contains(text, "unknown message type"), strings.Contains(text, "invalid message length"),
		strings.Contains(text, "invalid body length"), strings.Contains(text, "received unexpected message"):
		return &drivers.ConfigError{Key: "host", Value: p.addr(), Problem: "does not speak the Postgres protocol", Fix: "name a Postgres server"}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		// Of our own bound, so it must not look like the end of the caller's context.
		return drivers.Unavailable(fmt.Errorf("postgres %s does not answer", p.addr()))
	case errors.As(err, &op) && op.Op == "dial":
		// pgx says it again for each way that it tried to connect.
		return drivers.NotSent(fmt.Errorf("postgres %s: %w: is it running, and is this its address?", p.addr(), op))
	}
	return drivers.Unavailable(fmt.Errorf("postgres %s: %w", p.addr(), err))
}

func (p *place) noTable() error {
	return &drivers.ConfigError{
		Key: "lock_table", Value: p.table, Problem: "is missing in the database of postgres " + p.addr(),
		Fix: "add lock_create=true to the URL once, or run: " + Schema(p.table),
	}
}

func pooled(addr string) error {
	return &drivers.ConfigError{
		Key: "lock_mode", Value: "advisory", Problem: "needs sessions of its own, and there is a pooler before postgres " + addr,
		Fix: "use lock_mode=cas, or the server's own address; if the pooler keeps a session for each client, add lock_pooler=session",
	}
}
