package etcdlease_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/etcdlease"
)

// A wait is an Acquire in the background.
type wait struct {
	drivers.Request
	cancel context.CancelFunc
	ended  chan error
	grant  drivers.Grant // to be read after ended
}

// queue begins a wait, and returns when its key is in the queue behind others.
func queue(t *testing.T, d *etcdlease.Driver, client *clientv3.Client, r drivers.Request) *wait {
	t.Helper()
	w := &wait{Request: r, ended: make(chan error, 1)}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(t.Context())
	t.Cleanup(w.cancel)
	places := len(queued(t, client, r.Name))
	go func() {
		var err error
		w.grant, err = d.Acquire(ctx, r)
		w.ended <- err
	}()
	eventually(t, "a place in the queue", func() bool { return len(queued(t, client, r.Name)) == places+1 })
	return w
}

// withoutPoll is a request that only a push can serve in time.
func withoutPoll(name string) drivers.Request {
	r := request(name, time.Minute)
	r.Poll = time.Hour
	return r
}

func (w *wait) stillWaits(t *testing.T, pause time.Duration) {
	t.Helper()
	select {
	case err := <-w.ended:
		t.Fatalf("the wait has ended: %v", err)
	case <-time.After(pause):
	}
}

func (w *wait) granted(t *testing.T) drivers.Grant {
	t.Helper()
	select {
	case err := <-w.ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no grant within 10s")
	}
	return w.grant
}

func TestAWaiterIsWokenByTheReleaseAndNotByPolls(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, a, b := admin(t, c), open(t, c.URL()), open(t, c.URL())
	name := rand.Text()
	g := take(t, a, request(name, time.Minute))
	for range 10 {
		w := queue(t, b, client, withoutPoll(name))
		release(t, a, g)
		next := w.granted(t)
		if next.Token <= g.Token || next.Since.IsZero() || time.Since(next.Since) > next.TTL {
			t.Fatalf("granted %+v after token %d", next, g.Token)
		}
		g, a, b = next, b, a
	}
	release(t, a, g)
}

func TestAPollServesAWaiterWhoseWatchIsNotServed(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client := admin(t, c)
	// The watch is made of another client, which is closed: it never tells.
	mute := admin(t, c)
	_ = mute.Close()
	deaf := admin(t, c)
	deaf.Watcher = mute.Watcher
	d, err := etcdlease.New(t.Context(), deaf, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r := request(rand.Text(), time.Minute)
	r.Poll = 50 * time.Millisecond
	g := take(t, d, request(r.Name, time.Minute))
	w := queue(t, d, client, r)
	release(t, d, g)
	release(t, d, w.granted(t))
}

func TestAPredecessorThatGivesUpMakesNobodyAHolder(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	name := rand.Text()
	g := take(t, d, request(name, time.Minute))
	middle := queue(t, d, client, withoutPoll(name))
	last := queue(t, d, client, withoutPoll(name))
	middle.cancel()
	want(t, <-middle.ended, context.Canceled)
	eventually(t, "the place of the one that gave up is cleared", func() bool { return len(queued(t, client, name)) == 2 })
	last.stillWaits(t, 100*time.Millisecond)
	release(t, d, g)
	release(t, d, last.granted(t))
}

func TestAWaitThatIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	name := rand.Text()
	take(t, d, request(name, time.Minute))
	for _, releases := range []bool{false, true} {
		w := queue(t, d, client, withoutPoll(name))
		id := leaseOf(t, client, name, w.Owner)
		w.cancel()
		want(t, <-w.ended, context.Canceled)
		if releases {
			_ = d.Release(t.Context(), bare(w.Request))
			if left := queued(t, client, name); len(left) != 1 {
				t.Fatalf("left behind after the release: %v", left)
			}
		}
		eventually(t, "key and lease are gone", func() bool {
			return len(queued(t, client, name)) == 1 && ended(t, client, id)()
		})
	}
}

func TestAWaiterKeepsItsPlaceAlive(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	name := rand.Text()
	g := take(t, d, request(name, time.Minute))
	w := queue(t, d, client, request(name, 2*time.Second))
	w.stillWaits(t, 3500*time.Millisecond)
	release(t, d, g)
	if next := w.granted(t); time.Since(next.Since) > next.TTL {
		t.Fatalf("the grant was over before it was told: %+v", next)
	}
	release(t, d, w.grant)
}

// The waiter learns of the end of its lease by nothing but the push that the
// name is free.
func TestAWaiterWhoseLeaseHasEndedIsNeverToldThatItHolds(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	for range 5 {
		name := rand.Text()
		holder := request(name, time.Minute)
		g := take(t, d, holder)
		w := queue(t, d, client, withoutPoll(name))
		if _, err := client.Revoke(t.Context(), leaseOf(t, client, name, w.Owner)); err != nil {
			t.Fatal(err)
		}
		release(t, d, g)
		want(t, <-w.ended, drivers.ErrUnavailable)
	}
}

func TestAWaiterLearnsThatItsLeaseHasEnded(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	client, d := admin(t, c), open(t, c.URL())
	name := rand.Text()
	g := take(t, d, request(name, time.Minute))
	r := withoutPoll(name)
	r.TTL = 2 * time.Second
	w := queue(t, d, client, r)
	if _, err := client.Revoke(t.Context(), leaseOf(t, client, name, w.Owner)); err != nil {
		t.Fatal(err)
	}
	want(t, <-w.ended, drivers.ErrUnavailable)
	release(t, d, g)
}
