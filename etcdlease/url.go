package etcdlease

import (
	"context"
	"crypto/tls"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/lockkit/lock/drivers"
)

func init() {
	drivers.Register("etcd", open)
	drivers.Register("etcds", open)
}

const defaultPort = "2379"

func open(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
	prefix := u.TakeString("lock_prefix", defaultPrefix)
	bound, err := u.TakeDuration("dial_timeout", defaultBound)
	if err != nil {
		return nil, err
	}
	if err := u.Done(); err != nil {
		return nil, err
	}
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	config, err := clientConfig(u, bound)
	if err != nil {
		return nil, err
	}
	if err := greet(ctx, config); err != nil {
		return nil, err
	}
	client, err := connect(ctx, config, prefix)
	if err != nil {
		return nil, err
	}
	d, err := newDriver(client, prefix)
	if err == nil {
		err = d.meet(ctx, bound)
	}
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	d.owned = true
	return d, nil
}

// clientConfig is what the driver's own clients are made with.
func clientConfig(u *drivers.URL, bound time.Duration) (clientv3.Config, error) {
	if err := checkURL(u); err != nil {
		return clientv3.Config{}, err
	}
	config := clientv3.Config{
		Username:             u.Nodes[0].User,
		Password:             u.Nodes[0].Password,
		DialTimeout:          bound,
		DialKeepAliveTime:    10 * time.Second, // the shortest that gRPC allows
		DialKeepAliveTimeout: requestBound,
		MaxUnaryRetries:      2, // the second one is for a new token of the user; transactions are never repeated
		Logger:               zap.NewNop(),
		// Otherwise a server that was away for long may be tried two minutes late.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: requestBound,
		})},
	}
	scheme := "http://"
	if u.Scheme == "etcds" {
		scheme = "https://"
		config.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	for _, n := range u.Nodes {
		config.Endpoints = append(config.Endpoints, scheme+n.Addr(defaultPort))
	}
	return config, nil
}

func checkURL(u *drivers.URL) error {
	like := "write the URL like " + u.Scheme + "://[user:password@]127.0.0.1:2379"
	switch {
	case len(u.Nodes) == 0:
		return &drivers.ConfigError{Key: "host", Problem: "is missing", Fix: like}
	case u.Path != "":
		return &drivers.ConfigError{Key: "path", Value: u.Path, Problem: "is not used by etcd", Fix: "leave it out; keys begin with lock_prefix"}
	}
	seen := map[string]bool{}
	for _, n := range u.Nodes {
		addr := n.Addr(defaultPort)
		switch {
		case n.User != u.Nodes[0].User || n.Password != u.Nodes[0].Password:
			return &drivers.ConfigError{Key: "user", Problem: "differs between hosts", Fix: "write it once, before the first host"}
		case (n.User == "") != (n.Password == ""):
			return &drivers.ConfigError{Key: "user", Problem: "and password must be given both or not at all", Fix: like}
		case seen[addr]:
			return &drivers.ConfigError{Key: "host", Value: addr, Problem: "is given twice", Fix: "give each member once"}
		}
		seen[addr] = true
	}
	if u.TTL != 0 {
		return drivers.CheckTTL(u.TTL, 1, drivers.MaxTTL)
	}
	return nil
}

// connect makes the client, which proves the user's password. The client's
// context ends with ctx only until then.
func connect(ctx context.Context, config clientv3.Config, prefix string) (*clientv3.Client, error) {
	life, end := context.WithCancel(context.Background())
	detach := context.AfterFunc(ctx, end)
	config.Context = life
	client, err := clientv3.New(config)
	if err == nil && detach() {
		return client, nil
	}
	end()
	if err == nil {
		_ = client.Close()
		err = ctx.Err()
	}
	return nil, cluster{addresses(config.Endpoints), prefix}.explain(ctx, err)
}
