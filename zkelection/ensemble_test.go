package zkelection_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/zkelection"
)

// An ensemble of three, and a driver on one of its followers.
type ensemble struct {
	*servers.Cluster
	driver driver
	conn   *zk.Conn
}

// oneAtATime has each test find the ensemble whole.
var oneAtATime sync.Mutex

func newEnsemble(t *testing.T) *ensemble {
	t.Helper()
	oneAtATime.Lock()
	t.Cleanup(oneAtATime.Unlock)
	c := shared.ensemble.get(t)
	leader, err := c.Leader(within(t))
	must(t, err)
	addrs := []string{}
	for _, n := range c.Nodes {
		if n != leader {
			addrs = append(addrs, n.Addr())
		}
	}
	dialer := zkelection.NewDialer(nil)
	conn := connect(t, addrs, dialer, ttl)
	d, err := zkelection.New(within(t), conn, dialer, &zkelection.Options{Prefix: prefix(t)})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return &ensemble{c, d, conn}
}

// server is the member that the driver is connected to.
func (e *ensemble) server(t *testing.T) *servers.Node {
	t.Helper()
	for _, n := range e.Nodes {
		if n.Addr() == e.conn.Server() {
			return n
		}
	}
	t.Fatal("the driver is connected to no member")
	return nil
}

func (e *ensemble) renewSometime(t *testing.T, g drivers.Grant) {
	t.Helper()
	eventually(t, "the grant is renewed", func() bool {
		ctx, cancel := context.WithTimeout(within(t), ttl/4)
		defer cancel()
		_, err := e.driver.Renew(ctx, g)
		if errors.Is(err, drivers.ErrLost) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestGrantOutlivesTheServerOfItsDriver(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	g := acquire(t, e.driver, "name")
	dead := e.server(t)
	must(t, dead.Kill())
	e.renewSometime(t, g)
	must(t, dead.Restart(within(t)))
	stopped := e.server(t)
	must(t, stopped.Pause())
	e.renewSometime(t, g)
	must(t, stopped.Resume())
	must(t, stopped.Restart(within(t))) // it would take a while to rejoin by itself
	release(t, e.driver, g)
}

// A follower goes on answering reads for a while after it lost the others.
func TestRenewalNeedsAMajority(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	g := acquire(t, e.driver, "name")
	alone := e.server(t)
	for _, n := range e.Nodes {
		if n != alone {
			must(t, n.Pause())
		}
	}
	if _, _, err := e.conn.Exists("/"); err != nil {
		t.Logf("the follower does not even read: %v", err)
	}
	ctx, cancel := context.WithTimeout(within(t), ttl/8)
	defer cancel()
	if _, err := e.driver.Renew(ctx, g); err == nil {
		t.Error("a follower alone renewed a grant")
	}
	for _, n := range e.Nodes {
		must(t, n.Resume())
	}
}

func TestTokensRiseOverAChangeOfTheLeader(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	first := acquire(t, e.driver, "name")
	release(t, e.driver, first)
	leader, err := e.Leader(within(t))
	must(t, err)
	must(t, leader.Kill())
	second := acquire(t, e.driver, "name")
	must(t, leader.Restart(within(t)))
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
}

// What one server acknowledged is not denied by another one that lags.
func TestReleaseIsSeenThroughEveryServer(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	var ds []driver
	for _, n := range e.Nodes {
		ds = append(ds, openURL(t, "zk://"+n.Addr()+"?lock_prefix="+prefix(t)))
	}
	began := time.Now()
	for i := 0; i < 60 && time.Since(began) < patience/2; i++ {
		d := ds[i%3]
		g, err := d.TryAcquire(within(t), request("name"))
		must(t, err)
		_, err = ds[(i+1)%3].TryAcquire(within(t), request("name"))
		mustBe(t, err, drivers.ErrHeld)
		release(t, d, g)
	}
}
