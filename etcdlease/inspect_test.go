package etcdlease_test

import (
	"context"
	"crypto/rand"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

func TestCheckTellsWhatIsPromisedAndWhyNot(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	d := open(t, c.URL())
	r, err := d.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Product != "etcd" || r.Version != c.Source.Version || strings.Join(r.Servers, ",") != strings.Join(c.Addrs(), ",") {
		t.Errorf("got %+v", r)
	}
	if len(r.Promises) != len(drivers.Guarantees) {
		t.Fatalf("got %+v", r.Promises)
	}
	for _, p := range r.Promises {
		if p.Made != d.Guarantees().Has(p.Guarantee) || p.Made != (p.Why == "") {
			t.Errorf("got %+v", p)
		}
	}
}

func TestCheckWarnsOfAMemberThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := etcd(t)
	nobody := unused(t)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	r, err := open(t, c.URL()+","+nobody).Check(ctx)
	if err != nil || !strings.Contains(strings.Join(r.Warnings, "\n"), nobody) {
		t.Fatalf("got %+v, %v", r, err)
	}
}

// It takes the etcd on PATH, which may be an old one. It is not parallel, for
// it sets the environment.
func TestAnOldServerServesAndIsWarnedOf(t *testing.T) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("LOCKTEST_ETCD_BIN", path)
	c := servers.For(t, servers.Etcd, servers.Options{})
	d := open(t, c.URL())
	g := take(t, d, request(rand.Text(), time.Minute))
	_, err = d.TryAcquire(t.Context(), request(g.Name, time.Minute))
	want(t, err, drivers.ErrHeld)
	w := queue(t, d, admin(t, c), withoutPoll(g.Name))
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	release(t, d, g)
	release(t, d, w.granted(t))

	r, err := d.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(r.Version, "3.4.2") {
		t.Skipf("%s is not known to be old", r.Version)
	}
	if !strings.Contains(strings.Join(r.Warnings, "\n"), "upgrade to 3.4.38") {
		t.Errorf("no warning: %+v", r)
	}
}
