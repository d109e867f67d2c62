package lock_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/conformance/servers"
	_ "github.com/lockkit/lock/etcdlease"
	_ "github.com/lockkit/lock/redlock"
)

// printed runs an example and returns what it printed.
func printed(t *testing.T, example func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	example()
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestRedlockIsRefusedWhereFencingIsNeeded(t *testing.T) {
	c := servers.For(t, servers.Redis, servers.Options{Members: 3})
	t.Setenv("LOCK_URL", "redlock://"+strings.Join(c.Addrs(), ","))
	if out := printed(t, ExampleOpen_need); !strings.HasPrefix(out, "refused: ") || !strings.Contains(out, "redlock does not promise fencing: ") {
		t.Errorf("printed %q", out)
	}
	_, err := lock.Open(t.Context(), os.Getenv("LOCK_URL"), lock.Correctness)
	if err == nil || !strings.Contains(err.Error(), "fencing,durable") {
		t.Errorf("asked for correctness: %v", err)
	}
}

func TestTheSameProgramRunsOnEtcd(t *testing.T) {
	c := servers.For(t, servers.Etcd, servers.Options{})
	t.Setenv("LOCK_URL", "etcd://"+c.Addrs()[0])
	const want = "numbering invoices, fenced: true\ndone: <nil>\n"
	if out := printed(t, ExampleOpen_need); out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
}
