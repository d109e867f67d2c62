//go:build unix

package servers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance/servers"
)

// hideServers makes this machine one without servers.
func hideServers(t *testing.T) {
	t.Helper()
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	t.Setenv("LOCKKIT_CACHE", empty)
	t.Setenv("LOCKTEST_REQUIRE", "")
	t.Cleanup(servers.SetRoot(empty))
}

func TestMissingServersAreNamedWithWhatToInstall(t *testing.T) {
	hideServers(t)
	packages := map[servers.Product]string{
		servers.Redis:     "redis-server",
		servers.Etcd:      "etcd-server",
		servers.ZooKeeper: "libzookeeper-java",
		servers.Postgres:  "postgresql",
	}
	for p, pkg := range packages {
		_, startErr := servers.Start(t.Context(), p, servers.Options{})
		_, lookErr := servers.Look(p)
		for _, err := range []error{startErr, lookErr} {
			var missing *servers.MissingError
			if !errors.As(err, &missing) || missing.Product != p {
				t.Errorf("%s: %v", p, err)
				continue
			}
			for _, want := range []string{string(p), "apt-get install", pkg, variable(p)} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		}
	}
}

func TestNamedEtcdThatDoesNotExistIsMissing(t *testing.T) {
	t.Setenv("LOCKTEST_ETCD_BIN", "/nowhere/etcd")
	var missing *servers.MissingError
	if _, err := servers.Look(servers.Etcd); !errors.As(err, &missing) {
		t.Error(err)
	}
}

func TestLookSaysWhatWouldBeStarted(t *testing.T) {
	for _, p := range servers.Products() {
		source, err := servers.Look(p)
		var missing *servers.MissingError
		if errors.As(err, &missing) {
			continue
		}
		if err != nil || source.Kind != servers.Started || source.Path == "" || source.Version == "" || source.Addrs != nil {
			t.Errorf("%s: %+v, %v", p, source, err)
		}
	}
}

// fakeTB records how a test ended.
type fakeTB struct {
	ctx             context.Context
	skipped, failed string
}

func (f *fakeTB) Helper()                      {}
func (f *fakeTB) Cleanup(func())               {}
func (f *fakeTB) Logf(string, ...any)          {}
func (f *fakeTB) Skipf(s string, args ...any)  { f.skipped = fmt.Sprintf(s, args...) }
func (f *fakeTB) Fatalf(s string, args ...any) { f.failed = fmt.Sprintf(s, args...) }
func (f *fakeTB) Context() context.Context     { return f.ctx }

func TestMissingServersSkipOrFailAsRequired(t *testing.T) {
	hideServers(t)
	for _, c := range []struct {
		require string
		fails   bool
	}{
		{"", false},
		{"redis", true},
		{"etcd, redis", true},
		{"etcd,postgres", false},
	} {
		t.Setenv("LOCKTEST_REQUIRE", c.require)
		tb := &fakeTB{ctx: t.Context()}
		cluster := servers.For(tb, servers.Redis, servers.Options{})
		if cluster != nil || (tb.failed != "") != c.fails || (tb.skipped != "") == c.fails {
			t.Errorf("LOCKTEST_REQUIRE=%s: failed %q, skipped %q", c.require, tb.failed, tb.skipped)
		}
	}
}

func TestServersThatDoNotStartFailTheTest(t *testing.T) {
	tb := &fakeTB{ctx: t.Context()}
	servers.For(tb, servers.Redis, servers.Options{Args: []string{"--no-such-option", "x"}})
	if servers.For(t, servers.Redis, servers.Options{}); tb.skipped != "" || !strings.Contains(tb.failed, "no-such-option") {
		t.Errorf("failed %q, skipped %q", tb.failed, tb.skipped)
	}
}

// limited is for starts that do not end by themselves.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestVersionOfEtcdIsThatOfItsModule(t *testing.T) {
	mod, err := os.ReadFile("etcd/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "go.etcd.io/etcd/server/v3 " + servers.EtcdVersion; !strings.Contains(string(mod), want) {
		t.Errorf("%s is not in etcd/go.mod", want)
	}
}
