package redisnode_test

import (
	"net"
	"strings"
	"testing"

	"github.com/lockkit/lock/drivers"
)

func check(t *testing.T, d drivers.Driver) drivers.Report {
	t.Helper()
	report, err := d.(drivers.Checker).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestCheckSaysWhyAPromiseIsNotMade(t *testing.T) {
	addr := start(t).Addr()
	d := open(t, "redis://"+addr)
	report := check(t, d)
	if report.Product != "redis" || report.Version == "" || len(report.Servers) != 1 || report.Servers[0] != addr {
		t.Errorf("got %+v", report)
	}
	var made drivers.Guarantee
	for i, p := range report.Promises {
		if p.Guarantee != drivers.Guarantees[i] || p.Made == (p.Why != "") {
			t.Errorf("got %+v", p)
		}
		if p.Made {
			made |= p.Guarantee
		}
	}
	if made != drivers.Fencing || d.Guarantees() != made {
		t.Errorf("promises %v, reports %v, want fencing", d.Guarantees(), made)
	}
}

func TestReplicaEndsThePromiseOfFencing(t *testing.T) {
	node := start(t)
	d := open(t, "redis://"+node.Addr())
	_, port, _ := net.SplitHostPort(node.Addr())
	start(t, "--replicaof", "127.0.0.1 "+port)
	eventually(t, "the replica is seen", func() bool {
		check(t, d)
		return !d.Guarantees().Has(drivers.Fencing)
	})
	if g := acquire(t, d, request("name", long)); g.Token != 0 {
		t.Errorf("token %d without the promise", g.Token)
	}
}

func TestServerThatForbidsInfoPromisesNothing(t *testing.T) {
	node := start(t)
	admin := dial(t, node.Addr())
	if err := admin.Do(t.Context(), "acl", "setuser", "app", "on", ">pw", "~lock:*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	d := open(t, "redis://app:pw@"+node.Addr())
	if d.Guarantees() != 0 {
		t.Errorf("promises %v", d.Guarantees())
	}
	if why := check(t, d).Promises[0].Why; !strings.Contains(why, "INFO") {
		t.Errorf("because %q", why)
	}
	release(t, d, acquire(t, d, request("name", long)))
}

func TestEvictionIsWarnedOf(t *testing.T) {
	d := open(t, "redis://"+start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru").Addr())
	if w := check(t, d).Warnings; len(w) != 1 || !strings.Contains(w[0], "volatile-lru") {
		t.Errorf("got %q", w)
	}
}
