package pglock

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkit/lock/drivers"
)

func init() {
	drivers.Register("postgres", open)
	drivers.Register("postgresql", open)
}

func open(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
	mode, opts, err := takeOptions(u)
	if err != nil {
		return nil, err
	}
	config, err := poolConfig(u)
	if err != nil {
		return nil, err
	}
	if err := u.Done(); err != nil {
		return nil, err
	}
	if _, err := opts.complete(); err != nil {
		return nil, err
	}
	if err := checkTTL(mode, u.TTL); err != nil {
		return nil, err
	}
	if mode == "advisory" {
		return opened(NewAdvisory(ctx, config.ConnConfig, opts))
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, &drivers.ConfigError{Key: "url", Problem: "is refused by pgx: " + err.Error(), Fix: "correct the setting"}
	}
	d, err := NewCAS(ctx, pool, opts)
	if err != nil {
		closePool(pool)
		return nil, err
	}
	d.ownPool = true
	return d, nil
}

// checkTTL refuses at once what each request would be refused for. Zero: the
// driver is opened without package lock, and does not know.
func checkTTL(mode string, ttl time.Duration) error {
	switch {
	case ttl == 0:
		return nil
	case mode == "advisory":
		return drivers.CheckTTL(ttl, minSilence, maxSilence)
	}
	return drivers.CheckTTL(ttl, minLease, drivers.MaxTTL)
}

// opened avoids an interface with a nil pointer.
func opened(d *Advisory, err error) (drivers.Driver, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

func takeOptions(u *drivers.URL) (mode string, o *Options, err error) {
	o = &Options{
		Prefix: u.TakeString("lock_prefix", DefaultPrefix),
		Table:  u.TakeString("lock_table", DefaultTable),
	}
	if o.Create, err = u.TakeBool("lock_create", false); err != nil {
		return "", nil, err
	}
	if mode, err = u.TakeOneOf("lock_mode", "cas", "cas", "advisory"); err != nil || mode == "cas" {
		return mode, o, err
	}
	held, err := u.TakeInt("lock_max_held", DefaultMaxHeld, 1, 1_000_000)
	if err != nil {
		return "", nil, err
	}
	o.MaxHeld = int(held)
	pooler, err := u.TakeOneOf("lock_pooler", "none", "none", "session")
	o.SessionPooler = pooler == "session"
	return mode, o, err
}

// poolConfig hands all that is not lockkit's to pgx. The password is kept out
// of the text that pgx parses, since it quotes that in its errors.
func poolConfig(u *drivers.URL) (*pgxpool.Config, error) {
	settings := u.TakeOthers()
	for _, secret := range []string{"password", "sslpassword"} {
		if settings.Has(secret) {
			return nil, &drivers.ConfigError{Key: secret, Problem: "does not belong into the settings", Fix: "write postgres://user:password@host/, or use NewCAS or NewAdvisory"}
		}
	}
	if err := setServer(settings, u); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(keywords(settings))
	if err != nil {
		return nil, refusedByPgx(err)
	}
	if len(u.Nodes) > 0 && u.Nodes[0].HasPassword {
		config.ConnConfig.Password = u.Nodes[0].Password
	}
	return config, nil
}

// setServer writes the servers, the user and the database into the settings.
func setServer(settings url.Values, u *drivers.URL) error {
	if u.Path != "" {
		settings.Set("database", u.Path)
	}
	var hosts, ports []string
	for _, n := range u.Nodes {
		if n.User != u.Nodes[0].User || n.Password != u.Nodes[0].Password {
			return &drivers.ConfigError{Key: "user", Problem: "is not the same for all hosts", Fix: "give it once, before the first host"}
		}
		hosts = append(hosts, n.Host)
		ports = append(ports, n.Port)
	}
	if len(hosts) == 0 {
		return nil // a socket in host=, or what PGHOST says
	}
	settings.Set("host", strings.Join(hosts, ","))
	settings.Set("port", strings.Join(ports, ","))
	if u.Nodes[0].User != "" {
		settings.Set("user", u.Nodes[0].User)
	}
	if len(hosts) > 1 && !settings.Has("target_session_attrs") {
		settings.Set("target_session_attrs", "primary") // only one of them can keep locks
	}
	return nil
}

// keywords writes settings as key='value'.
func keywords(settings url.Values) string {
	escape := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	var b strings.Builder
	for key := range settings {
		b.WriteString(key + "='" + escape.Replace(settings.Get(key)) + "' ")
	}
	return b.String()
}

// refusedByPgx leaves out the text that pgx has parsed.
func refusedByPgx(err error) error {
	e := &drivers.ConfigError{Key: "url", Problem: "is refused by pgx", Fix: "see pgconn.ParseConfig for its settings"}
	if cause := errors.Unwrap(err); cause != nil {
		e.Problem += ": " + cause.Error()
	} else if _, msg, found := strings.Cut(err.Error(), "`: "); found {
		e.Problem += ": " + msg
	}
	return e
}
