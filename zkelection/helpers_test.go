package zkelection_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/zkelection"
)

// shared are the servers that tests have in common: one alone, whose process
// nobody touches, and three that each test leaves running.
var shared = struct{ single, ensemble *cluster }{
	single:   &cluster{options: servers.Options{Members: 1}},
	ensemble: &cluster{options: servers.Options{Members: 3}},
}

// A cluster starts when it is first asked for.
type cluster struct {
	options servers.Options
	once    sync.Once
	started *servers.Cluster
	err     error
}

func (c *cluster) get(t testing.TB) *servers.Cluster {
	t.Helper()
	c.once.Do(func() { c.started, c.err = servers.Start(within(t), servers.ZooKeeper, c.options) })
	var missing *servers.MissingError
	if errors.As(c.err, &missing) && !servers.Required(servers.ZooKeeper) {
		t.Skip(c.err)
	}
	must(t, c.err)
	return c.started
}

func (c *cluster) stop() {
	if c.started != nil {
		c.started.Stop()
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.single.stop()
	shared.ensemble.stop()
	os.Exit(code)
}

// zookeeper returns the addresses of the shared server.
func zookeeper(t testing.TB) []string {
	t.Helper()
	return shared.single.get(t).Addrs()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ttl is the longest that the servers of the tests keep: 20 ticks of 200 ms.
const ttl = 4 * time.Second

// patience bounds what must happen, on however busy a machine.
const patience = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

type driver interface {
	drivers.Driver
	drivers.Waiter
	drivers.Watcher
	drivers.Inspector
	drivers.Checker
}

// open opens a driver by URL. Each test has its own prefix.
func open(t testing.TB, settings string) driver {
	t.Helper()
	return openURL(t, "zk://"+strings.Join(zookeeper(t), ",")+"?"+settings+"&lock_prefix="+prefix(t))
}

func openURL(t testing.TB, raw string) driver {
	t.Helper()
	d, err := tryOpen(t, raw, ttl)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return d.(driver)
}

func tryOpen(t testing.TB, raw string, ttl time.Duration) (drivers.Driver, error) {
	t.Helper()
	u, err := drivers.ParseURL(raw)
	must(t, err)
	u.TTL = ttl
	return drivers.Open(within(t), u)
}

func prefix(t testing.TB) string { return strings.NewReplacer("/", "-").Replace(t.Name()) }

// connect makes a connection of the test's own, through a gate if there is one.
func connect(t testing.TB, addrs []string, d *zkelection.Dialer, ttl time.Duration) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(addrs, ttl, zk.WithDialer(d.Dial), zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// openThrough makes a driver whose packets go through a gate.
func openThrough(t testing.TB, ttl time.Duration) (driver, *gate) {
	t.Helper()
	g := newGate(t)
	d := zkelection.NewDialer(g.Dial)
	z, err := zkelection.New(within(t), connect(t, zookeeper(t), d, ttl), d, &zkelection.Options{Prefix: prefix(t)})
	must(t, err)
	t.Cleanup(func() { z.Close() })
	return z, g
}

// eye is a connection to look at nodes with.
func eye(t testing.TB) *zk.Conn {
	t.Helper()
	return connect(t, zookeeper(t), zkelection.NewDialer(nil), ttl)
}

func children(t testing.TB, conn *zk.Conn, name string) []string {
	t.Helper()
	list, _, err := conn.Children(parent(t, name))
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return list
}

func parent(t testing.TB, name string) string {
	return path.Join("/", prefix(t), drivers.EscapeName(name))
}

// eventually waits for what nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

var owners atomic.Int64

func request(name string) drivers.Request {
	return drivers.Request{
		Name: name, Owner: fmt.Sprintf("owner%d", owners.Add(1)), TTL: time.Second,
		Note: "a note", Fenced: true, Poll: patience, // what wakes a waiter is the service
	}
}

// acquire takes a name and renews the grant until it is released, so that it
// stays however long the test takes.
func acquire(t testing.TB, d drivers.Driver, name string) drivers.Grant {
	t.Helper()
	var g drivers.Grant
	eventually(t, "the service can be reached", func() bool {
		var err error
		g, err = d.TryAcquire(within(t), request(name))
		if err != nil && !errors.Is(err, drivers.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	go renewUntilOver(t.Context(), d, g)
	return g
}

func renewUntilOver(ctx context.Context, d drivers.Driver, g drivers.Grant) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(g.TTL / 4):
		}
		if _, err := d.Renew(ctx, g); err != nil && !errors.Is(err, drivers.ErrUnavailable) {
			return
		}
	}
}

func release(t testing.TB, d drivers.Driver, g drivers.Grant) {
	t.Helper()
	must(t, d.Release(within(t), g))
}

type outcome struct {
	grant drivers.Grant
	err   error
}

// wait queues in the background and returns when the node is in the queue.
func wait(t testing.TB, ctx context.Context, d driver, r drivers.Request) <-chan outcome {
	t.Helper()
	done := make(chan outcome, 1)
	go func() {
		g, err := d.Acquire(ctx, r)
		done <- outcome{g, err}
	}()
	conn := eye(t)
	eventually(t, "the waiter queues", func() bool { return queued(t, conn, r) })
	return done
}

func queued(t testing.TB, conn *zk.Conn, r drivers.Request) bool {
	t.Helper()
	for _, child := range children(t, conn, r.Name) {
		if strings.HasPrefix(child, "lock-"+r.Owner+"-") {
			return true
		}
	}
	return false
}

func mustGet(t testing.TB, done <-chan outcome) drivers.Grant {
	t.Helper()
	select {
	case o := <-done:
		if o.err != nil {
			t.Fatal(o.err)
		}
		return o.grant
	case <-time.After(patience):
		t.Fatal("the waiter was not served")
	}
	return drivers.Grant{}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}

// mustConfig returns the *ConfigError that err must be.
func mustConfig(t testing.TB, err error, key string) *drivers.ConfigError {
	t.Helper()
	var config *drivers.ConfigError
	if !errors.As(err, &config) || config.Key != key || config.Fix == "" {
		t.Fatalf("error is %v, want a *ConfigError about %s with a mend", err, key)
	}
	return config
}
