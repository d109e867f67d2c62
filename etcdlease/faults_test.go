package etcdlease_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

// The server stands still while the request is on its way; the client gives up,
// and releases what it may have got. The time to live is long, so that a key
// that appears later would stay.
func TestNoKeyAppearsAfterItsReclaim(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	client, d := admin(t, c), open(t, c.URL())
	reclaimers := []drivers.Driver{d, open(t, c.URL())}
	const tries = 32
	unclear := 0
	for i := range tries {
		release(t, d, take(t, d, request(rand.Text(), time.Hour))) // there is a lease
		r := request(fmt.Sprint("ghost-", i), time.Hour)
		if err := c.Nodes[0].Pause(); err != nil {
			t.Fatal(err)
		}
		resumed := make(chan error, 1)
		time.AfterFunc(80*time.Millisecond, func() { resumed <- c.Nodes[0].Resume() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(10+i)*time.Millisecond)
		_, err := d.TryAcquire(ctx, r)
		cancel()
		if err != nil {
			want(t, err, context.DeadlineExceeded)
			unclear++
		}
		err = reclaimers[i%2].Release(t.Context(), bare(r))
		if err != nil && !errors.Is(err, drivers.ErrLost) {
			t.Fatal(err)
		}
		if err := <-resumed; err != nil {
			t.Fatal(err)
		}
	}
	if unclear == 0 {
		t.Skip("no request was given up")
	}
	noKeysAppear(t, client, "ghost-")
}

func TestAServerThatHangsIsUnavailable(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	d := open(t, c.URL())
	g := take(t, d, request(rand.Text(), time.Minute))
	if err := c.Nodes[0].Pause(); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error {
			_, err := d.TryAcquire(ctx, request(rand.Text(), time.Minute))
			return err
		},
		"Renew":   func(ctx context.Context) error { _, err := d.Renew(ctx, g); return err },
		"Release": func(ctx context.Context) error { return d.Release(ctx, bare(request(rand.Text(), time.Minute))) },
		"Inspect": func(ctx context.Context) error { _, err := d.Inspect(ctx, g.Name); return err },
		"Check":   func(ctx context.Context) error { _, err := d.Check(ctx); return err },
	}
	var all sync.WaitGroup
	for name, call := range calls {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := call(ctx); !errors.Is(err, drivers.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s under a deadline: %v", name, err)
			}
		})
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			if err := call(ctx); errors.Is(err, drivers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s that was cancelled: %v", name, err)
			}
		})
		all.Go(func() {
			if err := call(t.Context()); !errors.Is(err, drivers.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s without a deadline: %v", name, err)
			}
		})
	}
	all.Wait()
	if err := c.Nodes[0].Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	release(t, d, g)
}

func TestAGrantOutlivesARestart(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	d := open(t, c.URL())
	g := take(t, d, request(rand.Text(), time.Minute))
	if err := c.Nodes[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a renewal", func() bool { _, err := d.Renew(t.Context(), g); return err == nil })
	if next := take(t, d, request(rand.Text(), time.Minute)); next.Token <= g.Token {
		t.Fatalf("token %d after %d", next.Token, g.Token)
	}
	release(t, d, g)
}

func TestAServerThatForgotEverythingIsServedWithNewLeases(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	d := open(t, c.URL())
	g := take(t, d, request(rand.Text(), time.Minute))
	var spare []drivers.Grant
	for range 5 {
		spare = append(spare, take(t, d, request(rand.Text(), time.Minute)))
	}
	for _, g := range spare {
		release(t, d, g)
	}
	if err := c.Nodes[0].RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loss is found", func() bool {
		_, err := d.Renew(t.Context(), g)
		return errors.Is(err, drivers.ErrLost)
	})
	release(t, d, take(t, d, request(g.Name, time.Minute)))
}

// stillHeld renews each grant until a renewal gets through, within its time.
func stillHeld(t *testing.T, d drivers.Driver, grants []drivers.Grant) {
	t.Helper()
	for _, g := range grants {
		eventually(t, "a renewal", func() bool {
			_, err := d.Renew(t.Context(), g)
			if err != nil {
				want(t, err, drivers.ErrUnavailable)
			}
			return err == nil
		})
	}
}

func TestOneMemberOfThreeMayFail(t *testing.T) {
	t.Parallel()
	faults := map[string]func(*servers.Node) error{"stopped": (*servers.Node).Pause, "killed": (*servers.Node).Kill}
	for how, fault := range faults {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := servers.For(t, servers.Etcd, servers.Options{
				Members: 3, Args: []string{"--heartbeat-interval", "50", "--election-timeout", "500"}, // for busy machines
			})
			client, d := admin(t, c), open(t, c.URL())
			var held []drivers.Grant
			for range 3 {
				held = append(held, take(t, d, request(rand.Text(), 15*time.Second)))
			}
			leader, err := c.Leader(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := fault(leader); err != nil {
				t.Fatal(err)
			}
			stillHeld(t, d, held)
			acquireAndRelease(t, d, 4)
			stillHeld(t, d, held)
			if _, err := open(t, c.URL()).Inspect(t.Context(), held[0].Name); err != nil {
				t.Error(err)
			}
			for _, g := range held {
				releaseAtLast(t, d, g)
			}
			if how == "stopped" { // what it was asked meanwhile is done now
				if err := leader.Resume(); err != nil {
					t.Fatal(err)
				}
			}
			noKeysAppear(t, client, "member-")
		})
	}
}

// acquireAndRelease goes on until it has succeeded n times. No call may hang.
func acquireAndRelease(t *testing.T, d drivers.Driver, n int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); n > 0; {
		if time.Now().After(end) {
			t.Fatal("no progress")
		}
		r := request("member-"+rand.Text(), 10*time.Minute)
		began := time.Now()
		g, err := d.TryAcquire(t.Context(), r)
		if took := time.Since(began); took > 8*time.Second {
			t.Fatalf("an attempt hung for %v", took)
		}
		if err == nil {
			n--
		} else {
			want(t, err, drivers.ErrUnavailable)
			g = bare(r)
		}
		releaseAtLast(t, d, g)
	}
}

// releaseAtLast releases until it is clear that there is nothing left.
func releaseAtLast(t *testing.T, d drivers.Driver, g drivers.Grant) {
	t.Helper()
	eventually(t, "the release", func() bool {
		err := d.Release(t.Context(), g)
		return err == nil || errors.Is(err, drivers.ErrLost)
	})
}

// noKeysAppear looks for as long as a request could still be on its way.
func noKeysAppear(t *testing.T, client *clientv3.Client, prefix string) {
	t.Helper()
	for range 30 {
		resp, err := client.Get(t.Context(), "lock/"+prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			if strings.Contains(string(kv.Key), "/q/") {
				t.Fatalf("a ghost: %s", kv.Key)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}
