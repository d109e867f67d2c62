package redisnode_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

const secret = "p@ss/w?rd,%x:y"

func TestOpenTellsWhatToMend(t *testing.T) {
	addr := start(t).Addr()
	locked := servers.For(t, servers.Redis, servers.Options{Password: secret}).Addrs()[0]
	cluster := start(t, "--cluster-enabled", "yes").Addr()
	_, port, _ := net.SplitHostPort(addr)
	replica := start(t, "--replicaof", "127.0.0.1 "+port).Addr()
	escaped := url.QueryEscape(secret)

	for _, test := range []struct{ url, key, says string }{
		{"redis://", "host", "127.0.0.1:6379"},
		{"redis://" + addr + "," + locked, "host", "redlock://"},
		{"redis://" + addr + "?lock_prefx=x", "lock_prefx", "lock_prefix"},
		{"redis://" + addr + "?lock_prefix={x}", "lock_prefix", "{ }"},
		{"redis://" + addr + "?lock_prefix=", "lock_prefix", "1 to 256"},
		{"redis://" + addr + "/zero", "path", "/0"},
		{"redis://" + addr + "/99", "path", "lower"},
		{"redis://" + locked, "password", locked},
		{"redis://:wrong@" + locked, "password", locked},
		{"redis://someone:" + escaped + "@" + locked, "password", locked},
		{"rediss://" + serve(t, "-ERR plain text\r\n"), "scheme", "redis://"},
		{"redis://" + cluster, "host", "cluster"},
		{"redis://" + replica, "host", "primary"},
		{"redis://" + start(t, "--sentinel").Addr(), "host", "sentinel"},
		{"redis://" + serve(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), "host", "protocol"},
	} {
		_, err := tryOpen(t.Context(), test.url)
		var fault *drivers.ConfigError
		switch {
		case !errors.As(err, &fault):
			t.Errorf("%s: got %v, want a ConfigError", test.url, err)
		case fault.Key != test.key || !strings.Contains(err.Error(), test.says):
			t.Errorf("%s: %v (key %s), want key %s and %q", test.url, err, fault.Key, test.key, test.says)
		}
		hides(t, err)
	}
	open(t, "redis://:"+escaped+"@"+locked)
}

// hides fails if an error shows the password in any form.
func hides(t *testing.T, err error) {
	t.Helper()
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "p@ss", "wrong@"} {
		if err != nil && strings.Contains(err.Error(), form) {
			t.Errorf("shows the password: %v", err)
		}
	}
}

// serve answers every connection with the reply, whatever it asks.
func serve(t *testing.T, reply string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, reply)
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// A server that does not know a command repeats it in its answer.
func TestPasswordThatTheServerRepeatsIsHidden(t *testing.T) {
	addr := serve(t, "-ERR unknown command `HELLO`, with args beginning with: `3` `AUTH` `default` `"+secret+"`\r\n"+
		"-ERR unknown command `AUTH`, with args beginning with: `"+secret+"`\r\n")
	_, err := tryOpen(t.Context(), "redis://:"+url.QueryEscape(secret)+"@"+addr)
	if err == nil {
		t.Fatal("opened")
	}
	hides(t, err)
	if !strings.Contains(err.Error(), "xxxxx") {
		t.Errorf("the answer did not come: %v", err)
	}
}

func TestOpenOfADeadServerIsUnavailable(t *testing.T) {
	node := start(t)
	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err := tryOpen(t.Context(), "redis://:"+url.QueryEscape(secret)+"@"+node.Addr())
	if !errors.Is(err, drivers.ErrUnavailable) || !strings.Contains(err.Error(), node.Addr()) {
		t.Errorf("got %v", err)
	}
	hides(t, err)
}

func TestServerThatDoesNotSpeakTLSIsHinted(t *testing.T) {
	_, err := tryOpen(t.Context(), "rediss://"+start(t).Addr())
	if !errors.Is(err, drivers.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "redis://") {
		t.Errorf("got %v", err)
	}
}

func TestOpenOfAHungServerIsBounded(t *testing.T) {
	node := start(t)
	if err := node.Pause(); err != nil {
		t.Fatal(err)
	}
	defer node.Resume()
	done := make(chan error, 2)
	go func() { // the context has no end
		_, err := tryOpen(context.Background(), "redis://"+node.Addr())
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := tryOpen(ctx, "redis://"+node.Addr()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, drivers.ErrUnavailable) || !strings.Contains(err.Error(), node.Addr()) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the open hangs")
	}
}

func TestTooShortTimeToLiveIsRefusedAtOpen(t *testing.T) {
	u, err := drivers.ParseURL("redis://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	u.TTL = time.Millisecond
	var fault *drivers.ConfigError
	if _, err := drivers.Open(t.Context(), u); !errors.As(err, &fault) || fault.Key != "lock_ttl" {
		t.Errorf("got %v", err)
	}
}

func TestClientsThatBreakTheRulesAreRefused(t *testing.T) {
	for mend, spoil := range map[string]func(*redis.Options){
		"MaxRetries: -1":              func(o *redis.Options) { o.MaxRetries = 0 },
		"ContextTimeoutEnabled: true": func(o *redis.Options) { o.ContextTimeoutEnabled = false },
		"ReadTimeout":                 func(o *redis.Options) { o.ReadTimeout = -1 },
	} {
		settings := clientOptions("127.0.0.1:1")
		spoil(settings)
		client := redis.NewClient(settings)
		defer client.Close()
		_, err := redisnode.New(t.Context(), client, nil)
		var fault *drivers.ConfigError
		if !errors.As(err, &fault) || !strings.Contains(fault.Fix, mend) {
			t.Errorf("got %v, want the advice %q", err, mend)
		}
	}
}
