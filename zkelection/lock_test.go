package zkelection_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/zkelection"
)

func TestOneHolderAtATime(t *testing.T) {
	a, b := open(t, ""), open(t, "")
	g := acquire(t, a, "name")
	for _, d := range []driver{a, b} {
		_, err := d.TryAcquire(within(t), request("name"))
		var held *drivers.HeldError
		if !errors.As(err, &held) {
			t.Fatalf("error is %v, want a *HeldError", err)
		}
		if held.Holder != (drivers.Holder{Owner: g.Owner, Note: "a note", Token: g.Token}) {
			t.Errorf("holder is %+v", held.Holder)
		}
	}
	release(t, a, g)
	acquire(t, b, "name")
}

func TestOnlyOneOfManyAttemptsSucceeds(t *testing.T) {
	ds := []driver{open(t, ""), open(t, "")}
	for round := range 20 {
		name := fmt.Sprint("name", round/2)
		grants := make(chan drivers.Grant, 10)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				g, err := ds[i%2].TryAcquire(within(t), request(name))
				if err == nil {
					grants <- g
				} else if !errors.Is(err, drivers.ErrHeld) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(grants) != 1 {
			t.Fatalf("%d of 10 attempts were granted", len(grants))
		}
		release(t, ds[round%2], <-grants)
	}
}

func TestRefusedAttemptLeavesNothing(t *testing.T) {
	a, b, conn := open(t, ""), open(t, ""), eye(t)
	acquire(t, a, "name")
	_, before, err := conn.Exists(parent(t, "name"))
	must(t, err)
	for _, d := range []driver{a, b} {
		_, err := d.TryAcquire(within(t), request("name"))
		mustBe(t, err, drivers.ErrHeld)
	}
	_, after, err := conn.Exists(parent(t, "name"))
	must(t, err)
	if *before != *after {
		t.Errorf("a refused attempt wrote: %+v, before %+v", after, before)
	}
}

func TestTokensRise(t *testing.T) {
	t.Parallel()
	a, b, conn := open(t, ""), open(t, ""), eye(t)
	var last drivers.Token
	for i := range 8 {
		d := []driver{a, a, b, b}[i%4]
		g := acquire(t, d, "name")
		_, stat, err := conn.Exists(parent(t, "name") + "/" + children(t, conn, "name")[0])
		must(t, err)
		if g.Token <= last || int64(g.Token) != stat.Czxid {
			t.Errorf("token %d after %d, czxid %d", g.Token, last, stat.Czxid)
		}
		last = g.Token
		release(t, d, g)
		if i%2 == 1 { // the server does so with empty containers
			must(t, conn.Delete(parent(t, "name"), -1))
		}
	}
}

func TestParentMadeAnewGrantsNothingTwice(t *testing.T) {
	a, b, conn := open(t, ""), open(t, ""), eye(t)
	release(t, a, acquire(t, a, "name")) // a remembers the parent's version
	must(t, conn.Delete(parent(t, "name"), -1))
	g := acquire(t, b, "name") // the same version again, and held
	_, err := a.TryAcquire(within(t), request("name"))
	mustBe(t, err, drivers.ErrHeld)
	if n := len(children(t, conn, "name")); n != 1 {
		t.Errorf("%d nodes are left, want the holder's", n)
	}
	release(t, b, g)
	acquire(t, a, "name")
}

func TestEachReleaseEndsItsOwnGrantOnly(t *testing.T) {
	a, b := open(t, ""), open(t, "")
	first := acquire(t, a, "name")
	release(t, a, first)
	second := acquire(t, b, "name")
	mustBe(t, a.Release(within(t), first), drivers.ErrLost)
	mustBe(t, a.Release(within(t), drivers.Grant{Name: first.Name, Owner: first.Owner}), drivers.ErrLost)
	if _, err := b.Renew(within(t), second); err != nil {
		t.Errorf("the successor lost its grant: %v", err)
	}
	_, err := a.Renew(within(t), first)
	mustBe(t, err, drivers.ErrLost)
}

func TestReleaseNeedsOnlyNameAndOwner(t *testing.T) {
	a, b, conn := open(t, ""), open(t, ""), eye(t)
	for _, d := range []driver{a, b} {
		g := acquire(t, a, "name")
		g.State = nil
		release(t, d, drivers.Grant{Name: g.Name, Owner: g.Owner})
		mustBe(t, d.Release(within(t), drivers.Grant{Name: g.Name, Owner: g.Owner}), drivers.ErrLost)
		if left := children(t, conn, "name"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		_, err := a.Renew(within(t), g)
		mustBe(t, err, drivers.ErrLost)
	}
	mustBe(t, a.Release(within(t), drivers.Grant{Name: "never", Owner: "nobody"}), drivers.ErrLost)
}

func TestRenewalNeverTakesBack(t *testing.T) {
	d, conn := open(t, ""), eye(t)
	g := acquire(t, d, "name")
	must(t, conn.Delete(parent(t, "name")+"/"+children(t, conn, "name")[0], -1))
	for range 2 {
		_, err := d.Renew(within(t), g)
		mustBe(t, err, drivers.ErrLost)
	}
	if left := children(t, conn, "name"); len(left) > 0 {
		t.Errorf("a renewal made %v", left)
	}
}

func TestRenewalsShareTransactions(t *testing.T) {
	t.Parallel()
	const n = 100
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	grants := make([]drivers.Grant, n)
	var wg sync.WaitGroup
	for i := range grants {
		wg.Go(func() { grants[i] = acquire(t, d, fmt.Sprint("name", i)) })
	}
	wg.Wait()
	gone := map[int]bool{7: true, 8: true, 90: true}
	for i := range gone {
		name := grants[i].Name
		must(t, conn.Delete(parent(t, name)+"/"+children(t, conn, name)[0], -1))
	}
	before := gate.count(opMulti)
	for i, g := range grants {
		wg.Go(func() {
			_, err := d.Renew(within(t), g)
			if lost := errors.Is(err, drivers.ErrLost); lost != gone[i] || err != nil && !lost {
				t.Errorf("renewal %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if sent := gate.count(opMulti) - before; sent > n/3 {
		t.Errorf("%d transactions for %d renewals", sent, n)
	}
}

func TestAnyNameServes(t *testing.T) {
	t.Parallel()
	d := open(t, "")
	names := []string{
		".", "..", "/", "a/b", "a//b", "{probe}", "%", "%41", "A", "\x00", "\xff", "é", "\ue000", "zookeeper", " ",
		strings.Repeat("\xff", drivers.MaxName), strings.Repeat("x", drivers.MaxName),
	}
	for _, name := range names {
		acquire(t, d, name)
		h, err := d.Inspect(within(t), name)
		if err != nil || h.Note != "a note" {
			t.Errorf("%q: %+v, %v", name, h, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", drivers.MaxName+1)} {
		_, err := d.TryAcquire(within(t), request(name))
		mustConfig(t, err, "name")
	}
}

func TestForeignChildrenAreIgnored(t *testing.T) {
	d, conn := open(t, ""), eye(t)
	release(t, d, acquire(t, d, "name"))
	for _, foreign := range []string{"config", "lock-", "lock-x", "lock-x-1", "write-x-0000000000", "_c_guid-lock-0000000000", "lock-%zz-0000000000"} {
		if _, err := conn.Create(parent(t, "name")+"/"+foreign, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	first := acquire(t, d, "name")
	done := wait(t, within(t), d, request("name"))
	release(t, d, first)
	if g := mustGet(t, done); g.Token <= first.Token {
		t.Errorf("token %d after %d", g.Token, first.Token)
	}
}

// An operator may delete anything at any time.
func TestAttemptWhoseNodeIsRemovedIsRefused(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	for _, withParent := range []bool{false, true} {
		release(t, d, acquire(t, d, "name")) // so that the next attempt does not look first
		foreign := parent(t, "name") + "/foreign"
		_, err := conn.Create(foreign, nil, 0, zk.WorldACL(zk.PermAll))
		must(t, err)
		held := gate.holdBack(opGetChildren)
		done := make(chan error, 1)
		go func() {
			_, err := d.TryAcquire(within(t), request("name"))
			done <- err
		}()
		<-held
		removeAll(t, conn, "name", foreign)
		if withParent {
			must(t, conn.Delete(foreign, -1))
			must(t, conn.Delete(parent(t, "name"), -1))
		}
		close(gate.deliver)
		mustBe(t, <-done, drivers.ErrUnavailable)
		if !withParent {
			must(t, conn.Delete(foreign, -1))
		}
	}
	acquire(t, d, "name")
}

// removeAll deletes what is queued, except for one node.
func removeAll(t *testing.T, conn *zk.Conn, name, except string) {
	t.Helper()
	for _, child := range children(t, conn, name) {
		if at := parent(t, name) + "/" + child; at != except {
			must(t, conn.Delete(at, -1))
		}
	}
}

func TestInspectTellsTheHolder(t *testing.T) {
	a, b := open(t, ""), open(t, "")
	_, err := b.Inspect(within(t), "name")
	mustBe(t, err, drivers.ErrNotHeld)
	g := acquire(t, a, "name")
	h, err := b.Inspect(within(t), "name")
	if want := (drivers.Holder{Owner: g.Owner, Note: "a note", Token: g.Token}); err != nil || h != want {
		t.Errorf("%+v, %v, want %+v", h, err, want)
	}
	release(t, a, g)
	_, err = b.Inspect(within(t), "name")
	mustBe(t, err, drivers.ErrNotHeld)
}

func TestCheckTellsWhatIsPromised(t *testing.T) {
	d := open(t, "")
	r, err := d.Check(within(t))
	must(t, err)
	if r.Product != "zookeeper" || r.Version == "" || r.Version == "unknown" || r.Servers[0] != zookeeper(t)[0] {
		t.Errorf("%+v", r)
	}
	if len(r.Promises) != len(drivers.Guarantees) {
		t.Fatalf("%d promises", len(r.Promises))
	}
	for _, p := range r.Promises {
		if p.Made != d.Guarantees().Has(p.Guarantee) || !p.Made && p.Why == "" {
			t.Errorf("%+v", p)
		}
	}
}

// The numbers in the names of nodes have 32 bits.
func TestQueueStartsAnewBeforeItsNumbersEnd(t *testing.T) {
	t.Cleanup(zkelection.SetLastNumber(6))
	d := open(t, "")
	var last drivers.Token
	refused := 0
	for range 20 {
		g, err := d.TryAcquire(within(t), request("name"))
		if errors.Is(err, drivers.ErrUnavailable) {
			refused++
			continue
		}
		if err != nil || g.Token <= last {
			t.Fatalf("token %d after %d: %v", g.Token, last, err)
		}
		last = g.Token
		release(t, d, g)
	}
	if refused == 0 || refused > 15 {
		t.Errorf("%d of 20 attempts were refused", refused)
	}
}

func TestLostReplyLeavesNoNode(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	release(t, d, acquire(t, d, "name"))
	gate.loseReplyTo(opMulti)
	r := request("name")
	_, err := d.TryAcquire(within(t), r)
	mustBe(t, err, drivers.ErrUnavailable)
	err = d.Release(within(t), drivers.Grant{Name: r.Name, Owner: r.Owner})
	if err != nil && !errors.Is(err, drivers.ErrLost) {
		t.Fatal(err)
	}
	if left := children(t, conn, "name"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	acquire(t, d, "name")
}

// The node goes also if nobody asks for it.
func TestGivenUpAttemptIsWithdrawn(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	release(t, d, acquire(t, d, "name"))
	held := gate.holdBack(opMulti)
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		<-held
		cancel()
	}()
	_, err := d.TryAcquire(ctx, request("name"))
	mustBe(t, err, context.Canceled)
	close(gate.deliver)
	<-gate.arrived
	eventually(t, "the late node is removed", func() bool {
		_, stat, err := conn.Exists(parent(t, "name"))
		return err == nil && stat.Version == 2 && stat.NumChildren == 0
	})
}

func TestReleaseDefeatsALateRequest(t *testing.T) {
	t.Parallel()
	d, gate := openThrough(t, ttl)
	conn := eye(t)
	release(t, d, acquire(t, d, "name"))
	held := gate.holdBack(opMulti)
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		<-held
		cancel()
	}()
	r := request("name")
	_, err := d.TryAcquire(ctx, r)
	mustBe(t, err, context.Canceled)
	gate.cutClient() // the request stays on its way
	mustBe(t, d.Release(within(t), drivers.Grant{Name: r.Name, Owner: r.Owner}), drivers.ErrLost)
	close(gate.deliver)
	<-gate.arrived
	g := acquire(t, d, "name") // reaches the same server later
	if _, err := conn.Sync("/"); err != nil {
		t.Fatal(err)
	}
	if left := children(t, conn, "name"); len(left) != 1 || !strings.Contains(left[0], g.Owner) {
		t.Errorf("the late request made its node: %v", left)
	}
}
