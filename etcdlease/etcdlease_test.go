package etcdlease_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"runtime"
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
	t.Parallel()
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
	t.Parallel()
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

// leaseOf is the etcd lease that a grant hangs on.
func leaseOf(t *testing.T, client *clientv3.Client, name, owner string) clientv3.LeaseID {
	t.Helper()
	resp, err := client.Get(t.Context(), "lock/"+drivers.EscapeName(name)+"/q/"+owner)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("no key of %s: %v", owner, err)
	}
	return clientv3.LeaseID(resp.Kvs[0].Lease)
}

func ended(t *testing.T, client *clientv3.Client, id clientv3.LeaseID) func() bool {
	return func() bool {
		resp, err := client.TimeToLive(t.Context(), id)
		return err == nil && resp.TTL <= 0
	}
}

func TestALeaseIsUsedAgainAfterARelease(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	used := map[clientv3.LeaseID]bool{}
	for range 10 {
		r := request(rand.Text(), time.Minute)
		g := take(t, d, r)
		used[leaseOf(t, client, r.Name, r.Owner)] = true
		release(t, d, g)
	}
	if len(used) != 1 {
		t.Fatalf("10 acquisitions in turn used %d leases", len(used))
	}
}

func TestNoGrantLivesOnTheRenewalsOfAnother(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	kept, left := request(rand.Text(), 2*time.Second), request(rand.Text(), 2*time.Second)
	g := take(t, d, kept)
	take(t, d, left)
	eventually(t, "the end of the grant that is not renewed", func() bool {
		if _, err := d.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		return len(keys(t, client, left.Name)) == 0
	})
	release(t, d, g)
}

func TestATimeToLiveIsRoundedUpToWhatTheServerKeeps(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{Args: []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}})
	d := open(t, c.URL())
	for asked, kept := range map[time.Duration]time.Duration{
		time.Millisecond: 2 * time.Second, time.Second: 2 * time.Second, 2100 * time.Millisecond: 3 * time.Second,
	} {
		g := take(t, d, request(rand.Text(), asked))
		ttl, err := d.Renew(t.Context(), g)
		if g.TTL != kept || ttl != kept || err != nil {
			t.Errorf("asked for %v: granted %v, renewed %v (%v), want %v", asked, g.TTL, ttl, err, kept)
		}
		release(t, d, g)
	}
}

func TestTheAcquireContextNeverOwnsALease(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	d := open(t, c.URL())
	acquire := map[string]func(context.Context, drivers.Request) (drivers.Grant, error){"TryAcquire": d.TryAcquire, "Acquire": d.Acquire}
	for how, acquire := range acquire {
		ctx, cancel := context.WithCancel(t.Context())
		g, err := acquire(ctx, request(rand.Text(), 2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := d.Renew(t.Context(), g); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		release(t, d, g)
	}
}

func TestARenewalFindsThatTheKeyIsGone(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	r := request(rand.Text(), time.Minute)
	g := take(t, d, r)
	if _, err := client.Delete(t.Context(), queued(t, client, r.Name)[0]); err != nil {
		t.Fatal(err)
	}
	for _, g := range []drivers.Grant{g, bare(r)} {
		_, err := d.Renew(t.Context(), g)
		want(t, err, drivers.ErrLost)
	}
	successor := request(r.Name, time.Minute)
	next := take(t, d, successor)
	_, err := d.Renew(t.Context(), g)
	want(t, err, drivers.ErrLost)
	want(t, d.Release(t.Context(), g), drivers.ErrLost)
	if h, err := d.Inspect(t.Context(), r.Name); err != nil || h.Owner != successor.Owner {
		t.Fatalf("the successor is not there: %+v, %v", h, err)
	}
	release(t, d, next)
}

func TestARenewalFindsThatTheLeaseIsGone(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	r := request(rand.Text(), time.Minute)
	g := take(t, d, r)
	if _, err := client.Revoke(t.Context(), leaseOf(t, client, r.Name, r.Owner)); err != nil {
		t.Fatal(err)
	}
	_, err := d.Renew(t.Context(), g)
	var lost *drivers.LostError
	if !errors.As(err, &lost) || lost.Reason != drivers.SessionEnded {
		t.Fatalf("got %v", err)
	}
}

func TestAReleaseBeforeItsRequestDefeatsIt(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, a, b := admin(t, c), open(t, c.URL()), open(t, c.URL())
	for _, releaser := range []drivers.Driver{a, b} {
		r := request(rand.Text(), time.Minute)
		want(t, releaser.Release(t.Context(), bare(r)), drivers.ErrLost)
		if g, err := a.TryAcquire(t.Context(), r); err == nil {
			t.Errorf("TryAcquire granted %+v", g)
		}
		if g, err := a.Acquire(t.Context(), r); err == nil {
			t.Errorf("Acquire granted %+v", g)
		}
		if left := queued(t, client, r.Name); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestAGraveEndsByItself(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	r := request(rand.Text(), time.Minute)
	want(t, d.Release(t.Context(), bare(r)), drivers.ErrLost)
	resp, err := client.Get(t.Context(), keys(t, client, r.Name)[0])
	if err != nil {
		t.Fatal(err)
	}
	left, err := client.TimeToLive(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
	if err != nil || left.TTL <= 0 || left.TTL > 120 {
		t.Fatalf("the grave has %+v left, %v", left, err)
	}
}

func TestReleaseNeverTouchesASuccessor(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	d := open(t, c.URL())
	first := request(rand.Text(), time.Minute)
	g := take(t, d, first)
	release(t, d, g)
	successor := request(first.Name, time.Minute)
	next := take(t, d, successor) // on the same etcd lease
	for _, g := range []drivers.Grant{g, bare(first)} {
		want(t, d.Release(t.Context(), g), drivers.ErrLost)
	}
	if _, err := d.Renew(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	release(t, d, next)
}

func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	name := rand.Text()
	take(t, open(t, c.URL()), request(name, time.Minute))
	take(t, open(t, c.URL()+"?lock_prefix=/app/locks"), request(name, time.Minute))
}

// It is not parallel, for it counts goroutines.
func TestCloseLeavesNoIdleLeaseNoWaiterAndNoGoroutine(t *testing.T) {
	c := etcd(t)
	client := admin(t, c)
	keys(t, client, "") // the client's own goroutines begin
	before := runtime.NumGoroutine()
	d, err := tryOpen(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	held, waits, idle := request(rand.Text(), time.Minute), request("", time.Minute), request(rand.Text(), time.Minute)
	waits.Name = held.Name
	take(t, d, held)
	waiting := make(chan error)
	go func() {
		_, err := d.(drivers.Waiter).Acquire(t.Context(), waits)
		waiting <- err
	}()
	eventually(t, "a place in the queue", func() bool { return len(queued(t, client, held.Name)) == 2 })
	g := take(t, d, idle)
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	leases := map[bool][]clientv3.LeaseID{
		true:  {leaseOf(t, client, idle.Name, idle.Owner), leaseOf(t, client, waits.Name, waits.Owner)},
		false: {leaseOf(t, client, held.Name, held.Owner)},
	}
	release(t, d, g)

	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, <-waiting, drivers.ErrClosed)
	_, err = d.TryAcquire(t.Context(), idle)
	want(t, err, drivers.ErrClosed)
	if left := queued(t, client, held.Name); len(left) != 1 {
		t.Fatalf("want the holder's key only: %v", left)
	}
	for end, ids := range leases {
		for _, id := range ids {
			if ended(t, client, id)() != end {
				t.Errorf("a lease has ended: %v, want %v", !end, end)
			}
		}
	}
	eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= before })
}
