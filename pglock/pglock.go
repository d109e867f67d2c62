// Package pglock is the driver for postgres:// URLs: locks in a Postgres
// database (14 or later), in one of two modes.
//
// lock_mode=cas (the default) is a lease in a row, on the database's clock. It
// works through any pooler and needs no connection of its own.
// lock_mode=advisory is a session-level advisory lock: the cheapest one there
// is in Postgres, in memory and without a write, but it hangs on a connection.
//
// Neither outlives a failover to a standby that lacks the last commits, and
// neither stops a holder that was paused past its lease: check the token where
// the data is. All programs that share a name must use one mode and one table;
// a name remembers its mode, and the other one is refused.
//
// # URL
//
//	postgres://[user[:password]@]host[:port][,host…]/database[?key=value&…]
//
// postgresql:// is the same. The settings are
//
//	lock_mode      cas (default) or advisory
//	lock_prefix    put before every name, default lock
//	lock_table     the table, default lockkit_lock; may have a schema: app.locks
//	lock_create    true: create the table if it is missing
//	lock_max_held  advisory: how many locks this driver may hold, default 2000
//	lock_pooler    advisory: session, if there is a session pooler in between
//
// and those of pgx: sslmode, connect_timeout, pool_max_conns, application_name
// and so on. [Schema] is the table for those who create it themselves. With a
// pool or configuration of your own use [NewCAS] and [NewAdvisory].
//
// # Promises
//
// Fencing, in both modes: the token is a number in the name's row that is
// raised and committed before the grant is reported. It holds as long as the
// row is neither deleted nor set back (by a restore, or by a failover to a
// standby that is behind). synchronous_commit and fsync are as the server has
// them and are not read yet, so Durable is not promised. Not Fair, and not
// Prompt: waiters poll.
//
// One holder at a time: cas, while the database's clock does not jump forward;
// advisory, while the server runs on. After a restart of the server, or when an
// administrator ends a session, its advisory locks are free before their
// holders have noticed, which takes until the next packet or renewal.
//
// # How it works
//
// cas: one conditional statement each to acquire, renew and release, in a
// transaction of its own. Whatever a late or blocked statement would do is
// decided by the row as it is then, never as it was. An owner that was released
// without a lease is remembered in the row (the last 64, for 10 minutes at
// least), so that its request is refused should it arrive after all.
//
// advisory: pg_try_advisory_lock on sessions that the driver opens for nothing
// else, at most 256 locks on each; a name's key is the table's oid and the
// row's id, so that two names never share one. The key comes with the grant, and
// a lock is given back by it, also if the row is gone or the table is locked;
// what a failed statement may have locked is found in pg_locks.
// idle_session_timeout is set to
// the time to live (rounded up by an eighth at most; locks with different times
// or with and without tokens are on different sessions), so that the server
// drops the locks of a holder that has stopped or is cut off. Every statement
// starts it anew for all locks of its session; a renewal that finds none on the
// way sends an empty one. A session that answers still is the same backend and
// so still has all its locks. No context of a caller ends a statement on a
// session, since that would end the session: the call returns at once, and what
// the statement brings is given back when it ends. A session that the driver itself
// ends is closed when its losses were told to the watcher, or after a second.
//
// # What can go wrong
//
// A server that hangs: a call returns when its context ends, and otherwise after
// about 5 seconds with an error that matches drivers.ErrUnavailable. Its outcome
// is unknown.
//
// A terminated session, a reset connection or an answer that takes longer than
// the time to live loses all locks of that session, up to 256. A commit that
// hangs (a synchronous standby that is down) hangs the fenced locks of its
// session with it.
//
// advisory: Release works through the driver that acquired, also without State,
// but not from another process: a session's locks are its own. Through a
// transaction pooler a lock and its release reach different sessions; it is
// refused. lock_pooler=session is believed, not checked.
//
// cas: a request that arrives after 64 others of its name were found dead, or
// after ten quiet minutes, may leave a lease behind that lasts its time to live.
//
// Programs with different search_path may see different tables lockkit_lock:
// name the schema in lock_table.
//
// # Cost
//
// cas: a round trip and a commit each to acquire, renew and release; a refused
// attempt writes nothing. advisory: one round trip each and no write; a token
// costs a commit more; a renewal costs nothing where another statement has just
// passed. A name that is new costs two statements more. A row per name stays
// for ever.
//
// Connections: those of the pool; advisory has one for each 256 locks of one
// time to live, and up to 4 at a time for grants with a token, closed when they
// hold nothing for half of the time to live, a minute at most;
// [Advisory.Inspect] and [Advisory.Check] open one for the call. A server with default settings runs
// out of lock memory, for everyone, at some 12,000 advisory locks.
package pglock

import (
	"embed"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/drivers"
)

// The defaults of Options.
const (
	DefaultPrefix  = "lock"
	DefaultTable   = "lockkit_lock"
	DefaultMaxHeld = 2000
)

const (
	maxPrefix  = 64              // keeps keys within what a btree can hold
	openBound  = 5 * time.Second // for the first answer of a server, and for each new session
	minVersion = 140000          // idle_session_timeout

	// requestBound is how long a call waits for a server that hangs, if the
	// caller's context does not end before.
	requestBound = 5 * time.Second
)

// Options configures a driver. Nil, and each zero field, means the default.
type Options struct {
	Prefix string // lock_prefix
	Table  string // lock_table
	Create bool   // lock_create

	// For NewAdvisory only.
	MaxHeld       int  // lock_max_held
	SessionPooler bool // lock_pooler=session
}

var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// complete returns the options with their defaults, or what is wrong with them.
func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if c.MaxHeld == 0 {
		c.MaxHeld = DefaultMaxHeld
	}
	switch {
	case len(c.Prefix) > maxPrefix:
		return c, &drivers.ConfigError{Key: "lock_prefix", Value: c.Prefix, Problem: "is too long", Fix: fmt.Sprintf("use at most %d bytes", maxPrefix)}
	case !tableName.MatchString(c.Table):
		return c, &drivers.ConfigError{Key: "lock_table", Value: c.Table, Problem: "is not a table name", Fix: "write it like lockkit_lock or app.lockkit_lock"}
	case c.MaxHeld < 0:
		return c, &drivers.ConfigError{Key: "lock_max_held", Value: strconv.Itoa(c.MaxHeld), Problem: "is negative", Fix: "use a number like 2000"}
	}
	return c, nil
}

// Schema is the SQL that creates the table, which lock_create=true runs.
func Schema(table string) string { return statement("schema", quote(table)) }

//go:embed sql
var files embed.FS

// statement is sql/name.sql for a table, without its comments: Postgres would
// be sent them with each call.
func statement(name, quotedTable string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "--") {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, ""), DefaultTable, quotedTable)
}

func quote(table string) string { return pgx.Identifier(strings.Split(table, ".")).Sanitize() }

// A place is where the locks are: what both modes know.
type place struct {
	addrs  []string
	table  string // as configured
	quoted string
	prefix string
	create bool
}

func newPlace(cfg *pgx.ConnConfig, o Options) place {
	return place{
		addrs: addresses(cfg), table: o.Table, quoted: quote(o.Table),
		prefix: drivers.EscapeName(o.Prefix) + "/", create: o.Create,
	}
}

// addresses lists the servers of a configuration. Each may be there twice, with
// and without TLS.
func addresses(cfg *pgx.ConnConfig) []string {
	addrs := []string{net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))}
	for _, f := range cfg.Fallbacks {
		addr := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (p *place) addr() string { return strings.Join(p.addrs, ",") }

func (p *place) statement(name string) string { return statement(name, p.quoted) }

// key is what a lock is called in the table. An escaped prefix has no slash, so
// that no two pairs of prefix and name share a key.
func (p *place) key(name string) []byte { return []byte(p.prefix + name) }

// wrongMode says that a name is used in another mode.
func (p *place) wrongMode(mine, its string) error {
	return &drivers.ConfigError{
		Key: "lock_mode", Value: mine, Problem: "is not that of the name, which is used with lock_mode=" + its,
		Fix: fmt.Sprintf("use that, or another lock_prefix, or stop all its users and run UPDATE %s SET mode = '%s' WHERE …", p.table, mine),
	}
}
