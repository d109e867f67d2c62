package redisnode

import (
	"context"
	"crypto/tls"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lockkit/lock/drivers"
)

func init() {
	drivers.Register("redis", open)
	drivers.Register("rediss", open)
}

// DefaultPort is Redis's.
const DefaultPort = "6379"

func open(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
	opts := &Options{Prefix: u.TakeString("lock_prefix", defaultPrefix)}
	if err := u.Done(); err != nil {
		return nil, err
	}
	if err := checkPrefix(opts.Prefix); err != nil {
		return nil, err
	}
	settings, err := urlSettings(u)
	if err != nil {
		return nil, err
	}
	d, err := start(ctx, settings.Addr, newStock(func() *Node {
		return &Node{client: redis.NewClient(settings), addr: settings.Addr, prefix: opts.Prefix}
	}))
	if err != nil {
		return nil, err
	}
	return d, nil
}

func urlSettings(u *drivers.URL) (*redis.Options, error) {
	switch len(u.Nodes) {
	case 0:
		return nil, &drivers.ConfigError{Key: "host", Problem: "is missing", Fix: "write it like " + u.Scheme + "://127.0.0.1:6379"}
	case 1:
	default:
		return nil, &drivers.ConfigError{Key: "host", Problem: "is a list", Fix: "name one server, or use redlock:// for a quorum of independent ones"}
	}
	if u.TTL != 0 {
		if err := drivers.CheckTTL(u.TTL, minTTL, drivers.MaxTTL); err != nil {
			return nil, err
		}
	}
	database, err := Database(u.Path)
	if err != nil {
		return nil, err
	}
	settings := ClientOptions(u.Nodes[0], database)
	if u.Scheme == "rediss" {
		settings.TLSConfig = &tls.Config{ServerName: u.Nodes[0].Host, MinVersion: tls.VersionTLS12}
	}
	return settings, nil
}

// Database is the number in the path of a URL, 0 if there is none.
func Database(path string) (int, error) {
	if path == "" {
		return 0, nil
	}
	number, err := strconv.ParseUint(path, 10, 16)
	if err != nil {
		return 0, &drivers.ConfigError{Key: "path", Value: path, Problem: "is not the number of a database", Fix: "write it like /0"}
	}
	return int(number), nil
}

// ClientOptions are the settings of the clients that are made from URLs.
func ClientOptions(n drivers.Node, database int) *redis.Options {
	return &redis.Options{
		Addr:                     n.Addr(DefaultPort),
		Username:                 n.User,
		Password:                 n.Password,
		DB:                       database,
		MaxRetries:               -1,
		DialerRetries:            1,
		ContextTimeoutEnabled:    true,
		DialTimeout:              3 * time.Second,
		ReadTimeout:              3 * time.Second,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// checkClient refuses settings under which a call may be sent twice or outlive
// its context.
func checkClient(o *redis.Options) error {
	fault := drivers.ConfigError{Key: "redis.Options"}
	switch {
	case o.MaxRetries != 0: // as go-redis keeps -1
		fault.Problem, fault.Fix = "has the client repeat commands", "set MaxRetries: -1"
	case !o.ContextTimeoutEnabled:
		fault.Problem, fault.Fix = "has the client ignore the deadlines of contexts", "set ContextTimeoutEnabled: true"
	case o.ReadTimeout <= 0 || o.WriteTimeout <= 0:
		fault.Problem, fault.Fix = "lets a command wait for ever", "leave ReadTimeout and WriteTimeout at their defaults"
	default:
		return nil
	}
	return &fault
}

// checkPrefix keeps keys, hash tags and ACL patterns unambiguous.
func checkPrefix(prefix string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("{}*?[]\\", r) }
	if prefix == "" || len(prefix) > 256 || strings.ContainsFunc(prefix, bad) {
		return &drivers.ConfigError{Key: "lock_prefix", Value: prefix, Problem: "is not a prefix of keys",
			Fix: `use 1 to 256 printable ASCII characters without space, { } * ? [ ] or \`}
	}
	return nil
}
