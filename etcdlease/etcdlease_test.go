package etcdlease_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/etcdlease"
)

// One member serves all tests that don't harm it.
var shared struct {
	once    sync.Once
	cluster *servers.Cluster
	err     error
}

// TestMain stops the shared member.
func TestMain(m *testing.M) {
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Stop()
	}
	os.Exit(code)
}

// etcd is the shared member.
func etcd(t *testing.T) *servers.Cluster {
	t.Helper()
	shared.once.Do(func() {
		shared.cluster, shared.err = servers.Start(context.Background(), servers.Etcd, servers.Options{Logf: func(string, ...any) {}})
	})
	var missing *servers.MissingError
	switch {
	case errors.As(shared.err, &missing) && !servers.Required(servers.Etcd):
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	return shared.cluster
}

func tryOpen(ctx context.Context, raw string) (drivers.Driver, error) {
	u, err := drivers.ParseURL(raw)
	if err != nil {
		return nil, err
	}
	return drivers.Open(ctx, u)
}

func open(t *testing.T, raw string) *etcdlease.Driver {
	t.Helper()
	d, err := tryOpen(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d.(*etcdlease.Driver)
}

// admin is a client to look with from outside, and to meddle.
func admin(t *testing.T, c *servers.Cluster) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Addrs(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func request(name string, ttl time.Duration) drivers.Request {
	return drivers.Request{Name: name, Owner: rand.Text(), TTL: ttl, Fenced: true}
}

func bare(r drivers.Request) drivers.Grant { return drivers.Grant{Name: r.Name, Owner: r.Owner} }

func take(t *testing.T, d drivers.Driver, r drivers.Request) drivers.Grant {
	t.Helper()
	g, err := d.TryAcquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func release(t *testing.T, d drivers.Driver, g drivers.Grant) {
	t.Helper()
	if err := d.Release(t.Context(), g); err != nil {
		t.Fatal(err)
	}
}

// want fails unless err matches.
func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want %v", err, target)
	}
}

// eventually waits for what a server will show some time soon.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10s: %s", what)
		}
	}
}

// keys are those below the prefix of a name.
func keys(t *testing.T, client *clientv3.Client, name string) []string {
	t.Helper()
	resp, err := client.Get(t.Context(), "lock/"+drivers.EscapeName(name)+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, kv := range resp.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

// queued are the keys of a name's holder and waiters.
func queued(t *testing.T, client *clientv3.Client, name string) []string {
	t.Helper()
	var all []string
	for _, k := range keys(t, client, name) {
		if strings.Contains(k, "/q/") {
			all = append(all, k)
		}
	}
	return all
}

func TestAGrantExcludesAndAReleaseFrees(t *testing.T) {
	c := etcd(t)
	a, b := open(t, c.URL()), open(t, c.URL())
	name := rand.Text()
	first := request(name, 5*time.Second)
	first.Note = "nightly report"
	g := take(t, a, first)
	for _, d := range []drivers.Driver{a, b} {
		_, err := d.TryAcquire(t.Context(), request(name, 5*time.Second))
		var held *drivers.HeldError
		if !errors.As(err, &held) || held.Holder.Owner != first.Owner || held.Holder.Note != first.Note || held.Holder.Token != g.Token {
			t.Fatalf("got %v, want the holder", err)
		}
	}
	h, err := b.Inspect(t.Context(), name)
	if err != nil || h.Owner != first.Owner || h.Note != first.Note || h.Token != g.Token || h.Remaining <= 0 || h.Remaining > 5*time.Second {
		t.Fatalf("Inspect says %+v, %v", h, err)
	}
	release(t, a, g)
	_, err = b.Inspect(t.Context(), name)
	want(t, err, drivers.ErrNotHeld)
	if next := take(t, b, request(name, 5*time.Second)); next.Token <= g.Token {
		t.Fatalf("token %d after %d", next.Token, g.Token)
	}
}

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	c := etcd(t)
	client := admin(t, c)
	holder := open(t, c.URL())
	name := rand.Text()
	g := take(t, holder, request(name, 5*time.Second))
	const waiters = 4
	grants := make(chan int, waiters)
	for i := range waiters {
		d := open(t, c.URL())
		go func() {
			g, err := d.Acquire(t.Context(), request(name, 5*time.Second))
			if err == nil {
				grants <- i
				err = d.Release(context.WithoutCancel(t.Context()), g)
			}
			if err != nil {
				t.Error(err)
				grants <- -1
			}
		}()
		eventually(t, "a place in the queue", func() bool { return len(queued(t, client, name)) == i+2 })
	}
	release(t, holder, g)
	for i := range waiters {
		if got := <-grants; got != i {
			t.Fatalf("waiter %d was served as number %d", got, i)
		}
	}
	eventually(t, "an empty queue", func() bool { return len(keys(t, client, name)) == 0 })
}
