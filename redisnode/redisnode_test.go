package redisnode_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

// open opens a driver by URL and closes it with the test.
func open(t testing.TB, rawURL string) *redisnode.Driver {
	t.Helper()
	d, err := tryOpen(t, rawURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d.(*redisnode.Driver)
}

func tryOpen(t testing.TB, rawURL string) (drivers.Driver, error) {
	t.Helper()
	u, err := drivers.ParseURL(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return drivers.Open(t.Context(), u)
}

// dial is a client beside the driver's.
func dial(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true})
	t.Cleanup(func() { client.Close() })
	return client
}
