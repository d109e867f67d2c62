package zkelection_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	ds := []driver{open(t, ""), open(t, "")}
	current := acquire(t, ds[0], "name")
	var waiters []<-chan outcome
	for i := range 6 {
		waiters = append(waiters, wait(t, within(t), ds[i%2], request("name")))
	}
	for i, done := range waiters {
		release(t, ds[(i+1)%2], current)
		g := mustGet(t, done)
		if g.Token <= current.Token {
			t.Errorf("token %d after %d", g.Token, current.Token)
		}
		current = g
	}
}

func TestAttemptNeverOvertakesAWaiter(t *testing.T) {
	t.Parallel()
	a, b := open(t, ""), open(t, "")
	g := acquire(t, a, "name")
	done := wait(t, within(t), b, request("name"))
	release(t, a, g)
	_, err := a.TryAcquire(within(t), request("name"))
	mustBe(t, err, drivers.ErrHeld)
	mustGet(t, done)
}

func TestWaitedGrantCountsFromItsOwnProof(t *testing.T) {
	a, b := open(t, ""), open(t, "")
	g := acquire(t, a, "name")
	done := wait(t, within(t), b, request("name"))
	released := time.Now()
	release(t, a, g)
	g = mustGet(t, done)
	if g.Since.Before(released) || g.TTL != ttl || g.Margin != ttl/4 {
		t.Errorf("since %v before the release, TTL %v, margin %v", released.Sub(g.Since), g.TTL, g.Margin)
	}
}

func TestReleaseWakesOneWaiter(t *testing.T) {
	t.Parallel()
	const n = 200
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	g := acquire(t, d, "name")
	grants := make(chan drivers.Grant, n)
	watching := gate.count(opGetData)
	for range n {
		go func() {
			if g, err := d.Acquire(ctx, request("name")); err == nil {
				grants <- g
			}
		}()
	}
	eventually(t, "all wait", func() bool { return gate.count(opGetData)-watching == n })
	for range 3 {
		before := gate.eventCount()
		release(t, d, g)
		g = <-grants
		if woken := gate.eventCount() - before; woken != 1 {
			t.Errorf("a release woke %d waiters", woken)
		}
	}
	cancel()
	release(t, d, g)
	eventually(t, "the queue is empty", func() bool { return len(children(t, conn, "name")) == 0 })
}

func TestCancelledWaiterLeavesNothing(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	g := acquire(t, d, "name")
	watches := gate.count(opGetData)
	for range 20 {
		ctx, cancel := context.WithCancel(within(t))
		r := request("name")
		done := wait(t, ctx, d, r)
		cancel()
		mustBe(t, (<-done).err, context.Canceled)
		if err := d.Release(within(t), drivers.Grant{Name: r.Name, Owner: r.Owner}); err != nil {
			mustBe(t, err, drivers.ErrLost)
		}
		if queued(t, conn, r) {
			t.Fatal("the waiter is still queued")
		}
	}
	if n := gate.count(opGetData) - watches; n > 1 {
		t.Errorf("%d watches on one node", n)
	}
	if _, err := d.Renew(within(t), g); err != nil {
		t.Error(err)
	}
}

func TestCancelledWaiterHandsItsTurnOn(t *testing.T) {
	t.Parallel()
	a, b := open(t, ""), open(t, "")
	g := acquire(t, a, "name")
	ctx, cancel := context.WithCancel(within(t))
	first := wait(t, ctx, a, request("name"))
	second := wait(t, within(t), b, request("name"))
	cancel()
	mustBe(t, (<-first).err, context.Canceled)
	select {
	case o := <-second:
		t.Fatalf("granted while the lock is held: %+v", o)
	default:
	}
	release(t, a, g)
	mustGet(t, second)
}

func TestWaiterFindsALostWakeUpByPolling(t *testing.T) {
	t.Parallel()
	a := open(t, "")
	d, gate := openThrough(t, ttl)
	g := acquire(t, a, "name")
	watching := gate.count(opGetData)
	r := request("name")
	r.Poll = 50 * time.Millisecond
	done := wait(t, within(t), d, r)
	eventually(t, "the watch is set", func() bool { return gate.count(opGetData) > watching })
	gate.loseEvents()
	release(t, a, g)
	mustGet(t, done)
}

func TestWaiterWhoseNodeIsRemovedIsNotServed(t *testing.T) {
	d, conn := open(t, ""), eye(t)
	g := acquire(t, d, "name")
	r := request("name")
	done := wait(t, within(t), d, r)
	for _, child := range children(t, conn, "name") {
		if parent(t, "name")+"/"+child != nodeOf(t, conn, g) {
			must(t, conn.Delete(parent(t, "name")+"/"+child, -1))
		}
	}
	release(t, d, g)
	mustBe(t, (<-done).err, drivers.ErrUnavailable)
}

// Neither the caller's context nor the poll ends before the service is back.
func TestWaiterGivesUpAServiceThatIsSilent(t *testing.T) {
	t.Parallel()
	for _, poll := range []time.Duration{50 * time.Millisecond, patience} {
		d, gate := openThrough(t, ttl)
		b, conn := open(t, ""), eye(t)
		g := acquire(t, b, "name")
		r := request("name")
		r.Poll = poll
		done := wait(t, context.Background(), d, r)
		began := time.Now()
		gate.cut()
		select {
		case o := <-done:
			mustBe(t, o.err, drivers.ErrUnavailable)
		case <-time.After(patience / 2):
			t.Fatalf("it still waits %v after the service went, polling each %v", time.Since(began), poll)
		}
		if took := time.Since(began); took < ttl/2 {
			t.Errorf("it gave up after %v already", took)
		}
		gate.mend()
		eventually(t, "its node is removed", func() bool { return !queued(t, conn, r) })
		release(t, b, g)
		release(t, d, acquire(t, d, "name"))
	}
}

// A connection that hangs is as silent as none.
func TestWaiterGivesUpAServiceThatHangs(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	b, conn := open(t, ""), eye(t)
	acquire(t, b, "name")
	r := request("name")
	r.Poll = 50 * time.Millisecond
	done := wait(t, context.Background(), d, r)
	gate.freeze()
	select {
	case o := <-done:
		mustBe(t, o.err, drivers.ErrUnavailable)
	case <-time.After(patience / 2):
		t.Fatal("it still waits")
	}
	gate.thaw()
	eventually(t, "its node is removed", func() bool { return !queued(t, conn, r) })
}

// nodeOf finds the node of a grant.
func nodeOf(t *testing.T, conn *zk.Conn, g drivers.Grant) string {
	t.Helper()
	for _, child := range children(t, conn, g.Name) {
		at := parent(t, g.Name) + "/" + child
		if _, stat, err := conn.Get(at); err == nil && stat.Czxid == int64(g.Token) {
			return at
		}
	}
	t.Fatal("the grant has no node")
	return ""
}
