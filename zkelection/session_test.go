package zkelection_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/zkelection"
)

func TestEndOfTheSessionLosesItsGrants(t *testing.T) {
	t.Parallel()
	a, gate := openThrough(t, ttl)
	b := open(t, "")
	lost := make(chan string, 10)
	ctx, cancel := context.WithCancel(within(t))
	watched := make(chan error, 1)
	go func() {
		watched <- a.Watch(ctx, func(owner string, err error) {
			if errors.Is(err, drivers.ErrLost) {
				lost <- owner
			}
		})
	}()
	released := acquire(t, a, "released")
	g := acquire(t, a, "name")
	release(t, a, released)
	waiter := wait(t, within(t), b, request("name"))
	gate.endSession()
	next := mustGet(t, waiter) // before the former holder can know
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
	gate.mend()
	if owner := <-lost; owner != g.Owner || len(lost) > 0 {
		t.Errorf("lost %s and %d others, want %s only", owner, len(lost), g.Owner)
	}
	_, err := a.Renew(within(t), g)
	mustBe(t, err, drivers.ErrLost)
	mustBe(t, a.Release(within(t), g), drivers.ErrLost)
	if _, err := b.Renew(within(t), next); err != nil {
		t.Errorf("the next holder lost its grant: %v", err)
	}
	acquire(t, a, "other") // in the new session
	cancel()
	mustBe(t, <-watched, context.Canceled)
}

func TestWaiterIsNotServedInANewSession(t *testing.T) {
	t.Parallel()
	a, gate := openThrough(t, ttl)
	b, conn := open(t, ""), eye(t)
	g := acquire(t, b, "name")
	r := request("name")
	done := wait(t, within(t), a, r)
	gate.endSession()
	gate.mend()
	release(t, b, g)
	mustBe(t, (<-done).err, drivers.ErrUnavailable)
	if queued(t, conn, r) {
		t.Error("it is still queued")
	}
	mustBe(t, a.Release(within(t), drivers.Grant{Name: r.Name, Owner: r.Owner}), drivers.ErrLost)
}

func TestRequestOfAFormerSessionComesToNothing(t *testing.T) {
	t.Parallel()
	a, gate := openThrough(t, ttl)
	release(t, a, acquire(t, a, "name"))
	held := gate.holdBack(opMulti)
	r := request("name")
	done := make(chan error, 1)
	go func() {
		_, err := a.TryAcquire(within(t), r)
		done <- err
	}()
	<-held
	gate.endSession()
	gate.mend()
	close(gate.deliver)
	mustBe(t, <-done, drivers.ErrUnavailable)
	g := acquire(t, a, "name")
	if left := children(t, eye(t), "name"); len(left) != 1 || !strings.Contains(left[0], g.Owner) {
		t.Errorf("%v, want the node of %s", left, g.Owner)
	}
}

func TestLostConnectionKeepsGrantsAndPlaces(t *testing.T) {
	t.Parallel()
	a, gate := openThrough(t, ttl)
	b := open(t, "")
	g := acquire(t, a, "mine")
	other := acquire(t, b, "name")
	done := wait(t, within(t), a, request("name"))
	gate.cutClient()
	eventually(t, "the grant can be renewed", func() bool {
		_, err := a.Renew(within(t), g)
		if errors.Is(err, drivers.ErrLost) {
			t.Fatal(err)
		}
		return err == nil
	})
	release(t, b, other)
	mustGet(t, done)
}

// The holder counts on the time that it was promised.
func TestShorterSessionLosesItsGrants(t *testing.T) {
	t.Parallel()
	const shorter = ttl / 5 // less than the margin of the former one
	a, gate := openThrough(t, ttl)
	conn := eye(t)
	lost := make(chan string, 10)
	go a.Watch(t.Context(), func(owner string, _ error) { lost <- owner })
	g := acquire(t, a, "name")
	done := wait(t, within(t), a, request("name"))
	gate.reconnect(shorter)
	select {
	case owner := <-lost:
		if owner != g.Owner {
			t.Errorf("lost %s, want %s", owner, g.Owner)
		}
	case <-time.After(patience / 2):
		t.Fatal("the holder is not told")
	}
	_, err := a.Renew(within(t), g)
	mustBe(t, err, drivers.ErrLost)
	mustBe(t, (<-done).err, drivers.ErrUnavailable)
	eventually(t, "the nodes are removed", func() bool { return len(children(t, conn, "name")) == 0 })
	r := request("name")
	r.TTL = shorter
	next, err := a.TryAcquire(within(t), r)
	must(t, err)
	if next.TTL != shorter || next.Margin != shorter/4 || next.Token <= g.Token {
		t.Errorf("TTL %v, margin %v, token %d after %d", next.TTL, next.Margin, next.Token, g.Token)
	}
}

// Its margin would be too small for the longer one.
func TestLongerSessionChangesNothing(t *testing.T) {
	t.Parallel()
	a, gate := openThrough(t, ttl)
	g := acquire(t, a, "name")
	gate.reconnect(2 * ttl)
	eventually(t, "the grant can be renewed", func() bool {
		left, err := a.Renew(within(t), g)
		if errors.Is(err, drivers.ErrLost) || left > ttl {
			t.Fatalf("renewed for %v, %v", left, err)
		}
		return err == nil
	})
	release(t, a, g)
}

func TestUnclearReleaseIsCarriedThrough(t *testing.T) {
	t.Parallel()
	const opDelete = 2
	a, gate := openThrough(t, ttl)
	conn := eye(t)
	g := acquire(t, a, "name")
	gate.loseReplyTo(opDelete)
	release(t, a, g) // the first deletion did it, but the driver could not know
	g = acquire(t, a, "name")
	gate.cut()
	ctx, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
	defer cancel()
	mustBe(t, a.Release(ctx, g), context.DeadlineExceeded)
	gate.mend()
	eventually(t, "the node is removed", func() bool { return len(children(t, conn, "name")) == 0 })
}

// A session may live on with its process: the driver ends what nobody renews.
func TestGrantThatIsNotRenewedEnds(t *testing.T) {
	t.Parallel()
	a, _ := openThrough(t, 400*time.Millisecond)
	b := open(t, "")
	r := request("name")
	r.TTL = 100 * time.Millisecond
	g, err := a.TryAcquire(within(t), r)
	must(t, err)
	mustGet(t, wait(t, within(t), b, request("name")))
	if age := time.Since(g.Since); age < g.TTL {
		t.Errorf("it ended after %v, its TTL was %v", age, g.TTL)
	}
	_, err = a.Renew(within(t), g)
	mustBe(t, err, drivers.ErrLost)
}

func TestNoRenewalAfterTheHoldersTime(t *testing.T) {
	t.Parallel()
	d, _ := openThrough(t, 400*time.Millisecond)
	r := request("name")
	r.TTL = 100 * time.Millisecond
	g, err := d.TryAcquire(within(t), r)
	must(t, err)
	time.Sleep(time.Until(g.Since.Add(g.TTL - g.Margin)))
	_, err = d.Renew(within(t), g)
	mustBe(t, err, drivers.ErrLost)
}

func TestCloseLeavesNothing(t *testing.T) {
	conn := eye(t)
	children(t, conn, "name") // it is connected
	before := runtime.NumGoroutine()
	d, err := tryOpen(t, "zk://"+zookeeper(t)[0]+"?lock_prefix="+prefix(t), ttl)
	must(t, err)
	g := acquire(t, d, "name")
	r := request("name")
	waiter := make(chan error, 1)
	go func() {
		_, err := d.(driver).Acquire(within(t), r)
		waiter <- err
	}()
	eventually(t, "the waiter queues", func() bool { return queued(t, conn, r) })
	must(t, errors.Join(d.Close(), d.Close()))
	mustBe(t, <-waiter, drivers.ErrClosed)
	if left := children(t, conn, "name"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	_, err = d.TryAcquire(within(t), request("name"))
	mustBe(t, err, drivers.ErrClosed)
	_, err = d.Renew(within(t), g)
	mustBe(t, err, drivers.ErrClosed)
	mustBe(t, d.Release(within(t), g), drivers.ErrClosed)
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

func TestCloseLeavesTheCallersConnectionAlone(t *testing.T) {
	dialer := zkelection.NewDialer(nil)
	conn := connect(t, zookeeper(t), dialer, ttl)
	d, err := zkelection.New(within(t), conn, dialer, &zkelection.Options{Prefix: prefix(t)})
	must(t, err)
	acquire(t, d, "name")
	waiter := wait(t, within(t), d, request("name"))
	must(t, d.Close())
	mustBe(t, (<-waiter).err, drivers.ErrClosed)
	if left := children(t, conn, "name"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	d, err = zkelection.New(within(t), conn, dialer, &zkelection.Options{Prefix: prefix(t)})
	must(t, err)
	acquire(t, d, "name")
	d.Close()
}

func TestCallsEndSoonAfterTheirContext(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	g := acquire(t, d, "held")
	gate.cut()
	calls := []struct {
		name string
		call func(context.Context) error
	}{
		{"TryAcquire", func(ctx context.Context) error { _, err := d.TryAcquire(ctx, request("name")); return err }},
		{"Acquire", func(ctx context.Context) error { _, err := d.Acquire(ctx, request("name")); return err }},
		{"Renew", func(ctx context.Context) error { _, err := d.Renew(ctx, g); return err }},
		{"Inspect", func(ctx context.Context) error { _, err := d.Inspect(ctx, "held"); return err }},
		{"Check", func(ctx context.Context) error { _, err := d.Check(ctx); return err }},
		{"Release", func(ctx context.Context) error { return d.Release(ctx, g) }},
	}
	for _, c := range calls {
		ctx, cancel := context.WithCancel(within(t))
		cancel()
		if err := c.call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", c.name, err)
		}
		ctx, cancel = context.WithTimeout(within(t), 20*time.Millisecond)
		began := time.Now()
		err := c.call(ctx)
		cancel()
		if took := time.Since(began); took > patience/2 || err == nil {
			t.Errorf("%s took %v: %v", c.name, took, err)
		}
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, drivers.ErrUnavailable) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
