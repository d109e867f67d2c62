package redlock_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redlock"
)

const secret = "p@ss/w?rd,%x:y"

func TestOpenTellsWhatToMend(t *testing.T) {
	good := servers.For(t, servers.Redis, servers.Options{Members: 3}).Addrs()
	two := good[0] + "," + good[1]
	_, port, _ := net.SplitHostPort(good[0])
	locked := servers.For(t, servers.Redis, servers.Options{Password: secret}).Addrs()[0]
	replica := servers.For(t, servers.Redis, servers.Options{Args: []string{"--replicaof", "127.0.0.1 " + port}}).Addrs()[0]
	member := servers.For(t, servers.Redis, servers.Options{Args: []string{"--cluster-enabled", "yes"}}).Addrs()[0]

	for _, test := range []struct{ url, key, says string }{
		{"", "host", "odd"},
		{good[0], "host", "redis://"},
		{two, "host", "odd"},
		{two + "," + good[2] + "," + locked, "host", "odd"},
		{"h1,h2,H1:6379", "host", "twice"},
		{"h1,h2,h1.", "host", "twice"},
		{"[::1],h2,[0:0:0:0:0:0:0:1]:06379", "host", "twice"},
		{"127.0.0.1,h2,[::ffff:127.0.0.1]", "host", "twice"},
		{two + ",localhost:" + port, "host", "one server"},
		{two + "," + replica, "host", "primary"},
		{two + "," + member, "host", "cluster"},
		{two + "," + locked, "password", locked},
		{two + ",:" + url.QueryEscape("wrong"+secret) + "@" + locked, "password", locked},
		{two + "," + good[2] + "/zero", "path", "/0"},
		{two + "," + good[2] + "?lock_node_timout=1s", "lock_node_timout", "lock_node_timeout"},
		{two + "," + good[2] + "?lock_node_timeout=0s", "lock_node_timeout", "positive"},
		{two + "," + good[2] + "?lock_node_timeout=5s", "lock_node_timeout", "lock_ttl"},
		{two + "," + good[2] + "?lock_prefix=", "lock_prefix", "empty"},
		{two + "," + good[2] + "?lock_prefix={x}", "lock_prefix", "{ }"},
	} {
		u, err := drivers.ParseURL("redlock://" + test.url)
		if err != nil {
			t.Fatal(err)
		}
		u.TTL = 5 * time.Second
		_, err = drivers.Open(t.Context(), u)
		var fault *drivers.ConfigError
		switch {
		case !errors.As(err, &fault):
			t.Errorf("%s: got %v, want a ConfigError", test.url, err)
		case fault.Key != test.key || !strings.Contains(err.Error(), test.says):
			t.Errorf("%s: %v (key %s), want key %s and %q", test.url, err, fault.Key, test.key, test.says)
		}
		hides(t, err)
	}
}

// hides fails if an error shows the password in any form.
func hides(t *testing.T, err error) {
	t.Helper()
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "p@ss"} {
		if err != nil && strings.Contains(err.Error(), form) {
			t.Errorf("shows the password: %v", err)
		}
	}
}

func TestServerThatForbidsInfoIsRefused(t *testing.T) {
	c := start(t, "")
	for _, client := range c.clients {
		if err := client.Do(t.Context(), "acl", "setuser", "app", "on", ">pw", "~lock:*", "+@all", "-info").Err(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := tryOpen(t.Context(), strings.Replace(c.url(""), "redlock://", "redlock://app:pw@", 1))
	var fault *drivers.ConfigError
	if !errors.As(err, &fault) || !strings.Contains(err.Error(), "INFO") {
		t.Errorf("got %v", err)
	}
}

func TestOpenWithAMinorityDownAndItJoins(t *testing.T) {
	c := start(t, "")
	c.kill(0)
	c.pause(1)
	d := c.open("")
	g, err := d.TryAcquire(t.Context(), request("name", long))
	if err != nil {
		t.Fatal(err)
	}
	c.resume(1)
	c.restart(0)
	eventually(t, "all servers take part", func() bool {
		if _, err := d.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		return c.holds() == 5
	})
	// The minority of the beginning and one more.
	c.kill(2, 3)
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Error(err)
	}
}

func TestOpenWithAMajorityDownIsUnavailable(t *testing.T) {
	c := start(t, "")
	c.kill(0, 1, 2)
	_, err := tryOpen(t.Context(), strings.Replace(c.url(""), "redlock://", "redlock://:"+url.QueryEscape(secret)+"@", 1))
	if !errors.Is(err, drivers.ErrUnavailable) || !errors.Is(err, drivers.ErrNoQuorum) || !strings.Contains(err.Error(), c.nodes[0].Addr()) && !strings.Contains(err.Error(), c.nodes[1].Addr()) && !strings.Contains(err.Error(), c.nodes[2].Addr()) {
		t.Errorf("got %v", err)
	}
	hides(t, err)
}

func TestOpenOfHungServersIsBounded(t *testing.T) {
	c := start(t, "")
	c.pause(0, 1, 2)
	defer c.resume(0, 1, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := tryOpen(ctx, c.url("")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { // the context has no end
		_, err := tryOpen(context.Background(), c.url(""))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, drivers.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the open hangs")
	}
}

func clientsOf(c *cluster, mend func(*redis.Options)) []*redis.Client {
	var clients []*redis.Client
	for _, n := range c.nodes {
		settings := &redis.Options{Addr: n.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true}
		mend(settings)
		client := redis.NewClient(settings)
		c.t.Cleanup(func() { client.Close() })
		clients = append(clients, client)
	}
	return clients
}

func TestClientsThatBreakTheRulesAreRefused(t *testing.T) {
	c := start(t, "")
	for mend, spoil := range map[string]func(*redis.Options){
		"MaxRetries: -1":              func(o *redis.Options) { o.MaxRetries = 0 },
		"ContextTimeoutEnabled: true": func(o *redis.Options) { o.ContextTimeoutEnabled = false },
	} {
		_, err := redlock.New(t.Context(), clientsOf(c, spoil), nil)
		var fault *drivers.ConfigError
		if !errors.As(err, &fault) || !strings.Contains(fault.Fix, mend) {
			t.Errorf("got %v, want the advice %q", err, mend)
		}
	}
}

func TestCallersClientsServeAndAreNeverClosed(t *testing.T) {
	c := start(t, "")
	clients := clientsOf(c, func(*redis.Options) {})
	c.kill(4)
	d, err := redlock.New(t.Context(), clients, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.TryAcquire(t.Context(), request("name", long))
	if err != nil {
		t.Fatal(err)
	}
	c.restart(4)
	eventually(t, "the late server takes part", func() bool {
		if _, err := d.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		return len(c.keys(4, "hold")) == 1
	})
	if err := d.Release(t.Context(), g); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for _, client := range clients {
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	}
	if _, err := redlock.New(t.Context(), []*redis.Client{clients[0], clients[1], clients[0]}, nil); err == nil {
		t.Error("one server was taken for two")
	}
}

func TestServerThatBecomesAReplicaCountsNoMore(t *testing.T) {
	c := start(t, "")
	c.kill(3, 4)
	c.release(c.acquire(request("name", long)))
	host, port, _ := net.SplitHostPort(c.nodes[1].Addr())
	if err := c.clients[0].ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.clients[0].ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	_, err := c.driver.TryAcquire(t.Context(), request("name", long))
	if !errors.Is(err, drivers.ErrNoQuorum) {
		t.Errorf("got %v, want no quorum", err)
	}
}
