//go:build unix

package servers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance/servers"
)

// every are the clusters that each product can be.
func every(t *testing.T, f func(t *testing.T, p servers.Product, members int)) {
	for _, p := range servers.Products() {
		for _, members := range []int{1, 3} {
			if p == servers.Postgres && members > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s-%d", p, members), func(t *testing.T) {
				t.Parallel()
				f(t, p, members)
			})
		}
	}
}

func TestServersAnswerAndKeepTheirDataOverFaults(t *testing.T) {
	version := regexp.MustCompile(`^\d+\.\d+(\.\d+)?$`)
	every(t, func(t *testing.T, p servers.Product, members int) {
		c := servers.For(t, p, servers.Options{Members: members, Durable: true})
		if len(c.Nodes) != members || len(c.Addrs()) != members || c.Product != p {
			t.Errorf("%d nodes and %d addresses of %s", len(c.Nodes), len(c.Addrs()), c.Product)
		}
		if c.Source.Kind != servers.Started || !version.MatchString(c.Source.Version) {
			t.Errorf("source %+v", c.Source)
		}
		n := c.Nodes[members-1]
		put(t, c, n)
		mustHave(t, c, n, true)
		pauseAndResume(t, c, n)
		killAndRestart(t, c, n)
		if err := n.RestartEmpty(t.Context()); err != nil {
			t.Fatal(err)
		}
		copied := members == 3 && p != servers.Redis
		mustHave(t, c, n, copied)
	})
}

// within is for what must not happen: there is no event to wait for.
const within = 150 * time.Millisecond

func pauseAndResume(t *testing.T, c *servers.Cluster, n *servers.Node) {
	t.Helper()
	if err := n.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if has, err := stores[c.Product].has(ctx, n); err == nil {
		t.Errorf("%s answered %v while it was paused", n, has)
	}
	if err := n.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := stores[c.Product].has(t.Context(), n)
		return err
	})
	mustHave(t, c, n, true)
}

func killAndRestart(t *testing.T, c *servers.Cluster, n *servers.Node) {
	t.Helper()
	pid, addr := n.Pid(), n.Addr()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if n.Pid() != 0 || !gone(pid) {
		t.Errorf("%s: pid %d after a kill, %d gone: %v", n, n.Pid(), pid, gone(pid))
	}
	if err := n.Pause(); err == nil {
		t.Errorf("%s: a killed process was paused", n)
	}
	if err := n.Kill(); err != nil {
		t.Errorf("a second kill: %v", err)
	}
	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.Pid() == 0 || n.Pid() == pid || n.Addr() != addr {
		t.Errorf("pid %d and address %s after a restart, before %d and %s", n.Pid(), n.Addr(), pid, addr)
	}
	mustHave(t, c, n, true)
}

// eventually tries until there is no error.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	// A zombie has ended; who should wait for it may be slow.
	return strings.Contains(string(stat), ") Z ")
}

func TestClusterLosesItsLeaderThenAllNodesThenItsData(t *testing.T) {
	for _, p := range []servers.Product{servers.Etcd, servers.ZooKeeper} {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			c := servers.For(t, p, servers.Options{Members: 3})
			put(t, c, c.Nodes[0])
			loseLeader(t, c)
			for _, n := range c.Nodes {
				if err := n.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustHave(t, c, c.Nodes[0], true)
			if err := c.RestartEmpty(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustHave(t, c, c.Nodes[0], false)
		})
	}
}

func loseLeader(t *testing.T, c *servers.Cluster) {
	t.Helper()
	first, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	second, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first == second {
		t.Errorf("%s leads though it was killed", first)
	}
	// At once, while the new leader is new.
	if err := first.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustHave(t, c, first, true)
}

func TestRedisThatIsNotDurableForgets(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Redis, servers.Options{})
	put(t, c, c.Nodes[0])
	if err := c.Nodes[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustHave(t, c, c.Nodes[0], false)
}

func TestRedisNodesAreIndependent(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Redis, servers.Options{Members: 5})
	put(t, c, c.Nodes[0])
	for i, n := range c.Nodes {
		mustHave(t, c, n, i == 0)
	}
}

func TestOneMemberLeadsItself(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	if n, err := c.Leader(t.Context()); err != nil || n != c.Nodes[0] {
		t.Errorf("leader %v, %v", n, err)
	}
	r := servers.For(t, servers.Redis, servers.Options{})
	if n, err := r.Leader(t.Context()); err == nil {
		t.Errorf("a redis leads: %v", n)
	}
}

func TestOldEtcdWorksToo(t *testing.T) {
	const debian = "/usr/bin/etcd"
	if _, err := os.Stat(debian); err != nil {
		t.Skip(err)
	}
	t.Setenv("LOCKTEST_ETCD_BIN", debian)
	c := servers.For(t, servers.Etcd, servers.Options{Members: 3})
	if c.Source.Path != debian {
		t.Errorf("started %s", c.Source.Path)
	}
	put(t, c, c.Nodes[0])
	if err := c.Nodes[0].RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustHave(t, c, c.Nodes[0], true)
}

func TestImpossibleOptionsAreRefused(t *testing.T) {
	for _, c := range []struct {
		p servers.Product
		o servers.Options
	}{
		{servers.Etcd, servers.Options{Members: 2}},
		{servers.ZooKeeper, servers.Options{Members: 5}},
		{servers.Postgres, servers.Options{Members: 3}},
		{servers.Redis, servers.Options{Members: -1}},
		{servers.Etcd, servers.Options{Password: "x"}},
		{servers.Redis, servers.Options{Password: "two\nlines"}},
		{"mysql", servers.Options{}},
	} {
		cluster, err := servers.Start(t.Context(), c.p, c.o)
		var missing *servers.MissingError
		if err == nil || errors.As(err, &missing) {
			t.Errorf("%s %+v: %v, %v", c.p, c.o, cluster, err)
		}
	}
}

// A member alone is never ready: its restart lasts until the others are there, or until Stop.
func TestStopBreaksOffARestart(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{Members: 3})
	if want := "etcd://" + strings.Join(c.Addrs(), ","); c.URL() != want {
		t.Errorf("URL %s, want %s", c.URL(), want)
	}
	for _, n := range c.Nodes {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error)
	go func() { ended <- c.Nodes[0].Restart(context.Background()) }()
	select {
	case err := <-ended:
		t.Errorf("a member without the others was ready: %v", err)
	case <-time.After(within):
	}
	stopped := make(chan struct{})
	go func() { c.Stop(); close(stopped) }()
	if err := <-ended; !errors.Is(err, servers.ErrStopped) {
		t.Error(err)
	}
	<-stopped
}
