package redlock

import (
	"context"
	"net/netip"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

func init() { drivers.Register("redlock", open) }

func open(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
	opts, err := urlOptions(u)
	if err != nil {
		return nil, err
	}
	var d *Driver // set before the first connection is made
	clients, err := urlClients(u, func(ctx context.Context, i int, conn *redis.Conn) error {
		return d.nodes[i].onConnect(ctx, conn)
	})
	if err != nil {
		return nil, err
	}
	if d, err = build(clients, opts); err != nil {
		return nil, err // clients that were never used have nothing to close
	}
	d.owned = true
	for _, n := range d.nodes {
		n.eachConn = true
	}
	if err := d.meet(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

func urlOptions(u *drivers.URL) (*Options, error) {
	opts := &Options{Prefix: u.TakeString("lock_prefix", defaultPrefix)}
	if opts.Prefix == "" {
		return nil, &drivers.ConfigError{Key: "lock_prefix", Problem: "is empty", Fix: "leave it out for " + defaultPrefix}
	}
	var err error
	if opts.NodeTimeout, err = u.TakeDuration("lock_node_timeout", 0); err != nil {
		return nil, err
	}
	if err := u.Done(); err != nil {
		return nil, err
	}
	if u.TTL == 0 {
		return opts, nil
	}
	if opts.NodeTimeout >= u.TTL {
		return nil, &drivers.ConfigError{Key: "lock_node_timeout", Value: opts.NodeTimeout.String(),
			Problem: "is not shorter than lock_ttl", Fix: "use a tenth of " + u.TTL.String()}
	}
	return opts, drivers.CheckTTL(u.TTL, minTTL, drivers.MaxTTL)
}

// urlClients makes a client for each server. It sends nothing.
func urlClients(u *drivers.URL, onConnect func(context.Context, int, *redis.Conn) error) ([]*redis.Client, error) {
	if err := checkCount(len(u.Nodes)); err != nil {
		return nil, err
	}
	if err := checkDoubles(u.Nodes); err != nil {
		return nil, err
	}
	database, err := redisnode.Database(u.Path)
	if err != nil {
		return nil, err
	}
	clients := make([]*redis.Client, len(u.Nodes))
	for i, n := range u.Nodes {
		settings := redisnode.ClientOptions(n, database)
		settings.OnConnect = func(ctx context.Context, conn *redis.Conn) error { return onConnect(ctx, i, conn) }
		clients[i] = redis.NewClient(settings)
	}
	return clients, nil
}

// checkDoubles finds an address that is given twice, however it is spelled. Two
// names of one server are found when they are connected to.
func checkDoubles(nodes []drivers.Node) error {
	seen := map[string]bool{}
	for _, n := range nodes {
		address := canonical(n)
		if seen[address] {
			return &drivers.ConfigError{Key: "host", Value: n.Addr(redisnode.DefaultPort), Problem: "is given twice",
				Fix: "name each server once"}
		}
		seen[address] = true
	}
	return nil
}

func canonical(n drivers.Node) string {
	host := strings.ToLower(strings.TrimSuffix(n.Host, "."))
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	port := n.Port
	if number, err := strconv.ParseUint(port, 10, 16); err == nil {
		port = strconv.FormatUint(number, 10)
	} else {
		port = redisnode.DefaultPort
	}
	return host + " " + port
}
