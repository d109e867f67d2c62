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

// survives kills or stops the driver's server and reports whether the grant can
// be renewed through another one. The session may end if the machine is too
// busy to find it in time.
func (e *ensemble) survives(t *testing.T, strike func(*servers.Node) error) bool {
	t.Helper()
	g := acquire(t, e.driver, "name")
	hit := e.server(t)
	must(t, strike(hit))
	kept := false
	eventually(t, "the grant is renewed or lost", func() bool {
		ctx, cancel := context.WithTimeout(within(t), ttl/8)
		defer cancel()
		_, err := e.driver.Renew(ctx, g)
		kept = err == nil
		return kept || errors.Is(err, drivers.ErrLost)
	})
	must(t, hit.Restart(within(t)))
	if err := e.driver.Release(within(t), g); err != nil {
		mustBe(t, err, drivers.ErrLost)
	}
	return kept
}

func TestGrantOutlivesTheServerOfItsDriver(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	for what, strike := range map[string]func(*servers.Node) error{
		"killed":  (*servers.Node).Kill,
		"stopped": (*servers.Node).Pause,
	} {
		kept := false
		for try := 0; try < 3 && !kept; try++ {
			kept = e.survives(t, strike)
		}
		if !kept {
			t.Errorf("the grant was lost when its server was %s, three times", what)
		}
	}
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
