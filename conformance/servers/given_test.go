//go:build unix

package servers_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lockkit/lock/conformance/servers"
)

func TestRunningServersAreUsed(t *testing.T) {
	for _, p := range servers.Products() {
		t.Run(string(p), func(t *testing.T) {
			own := servers.For(t, p, servers.Options{})
			t.Setenv(variable(p), " "+own.Addrs()[0]+" ")
			source, err := servers.Look(p)
			if err != nil || source.Kind != servers.Given || !slices.Equal(source.Addrs, own.Addrs()) {
				t.Errorf("Look: %+v, %v", source, err)
			}
			c := servers.For(t, p, servers.Options{})
			if c.Source.Kind != servers.Given || !slices.Equal(c.Addrs(), own.Addrs()) || c.URL() != own.URL() {
				t.Errorf("%+v %q", c.Source, c.URL())
			}
			if c.Source.Version != own.Source.Version {
				t.Errorf("version %q, want %q", c.Source.Version, own.Source.Version)
			}
			mustRefuseFaults(t, c.Nodes[0])
			if p == servers.Postgres {
				mustTakeURL(t, own)
			}
			c.Stop()
			put(t, own, own.Nodes[0]) // Stop has left it alone
		})
	}
}

func mustTakeURL(t *testing.T, own *servers.Cluster) {
	t.Helper()
	url := own.URL() + "&application_name=x"
	t.Setenv(variable(servers.Postgres), url)
	c := servers.For(t, servers.Postgres, servers.Options{})
	if c.URL() != url || !slices.Equal(c.Addrs(), own.Addrs()) {
		t.Errorf("URL %q, addresses %q", c.URL(), c.Addrs())
	}
}

func variable(p servers.Product) string { return "LOCKTEST_" + strings.ToUpper(string(p)) + "_ADDR" }

func mustRefuseFaults(t *testing.T, n *servers.Node) {
	t.Helper()
	if n.Pid() != 0 || n.Dir() != "" {
		t.Errorf("a given server has pid %d and directory %q", n.Pid(), n.Dir())
	}
	for name, err := range map[string]error{
		"Pause":        n.Pause(),
		"Resume":       n.Resume(),
		"Kill":         n.Kill(),
		"Restart":      n.Restart(t.Context()),
		"RestartEmpty": n.RestartEmpty(t.Context()),
	} {
		if !errors.Is(err, servers.ErrNotOurs) {
			t.Errorf("%s of a given server: %v", name, err)
		}
	}
}

func TestGivenServersThatCannotBeWhatIsWantedAreMissing(t *testing.T) {
	t.Setenv(variable(servers.Redis), "127.0.0.1:1, 127.0.0.1:2")
	for _, o := range []servers.Options{
		{Members: 3},
		{Password: "secret"},
		{Args: []string{"--maxmemory", "1mb"}},
		{Env: []string{"A=b"}},
	} {
		_, err := servers.Start(t.Context(), servers.Redis, o)
		var missing *servers.MissingError
		if !errors.As(err, &missing) || missing.Product != servers.Redis {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestWrongAddressesAreErrorsAndNotSkips(t *testing.T) {
	for value, p := range map[string]servers.Product{
		"localhost":                          servers.Redis, // no port
		"127.0.0.1:1":                        servers.Redis, // nobody is there
		"127.0.0.1:2,":                       servers.Etcd,  // an empty one
		"postgres:///nohost?password=secret": servers.Postgres,
	} {
		t.Setenv(variable(p), value)
		_, err := servers.Start(limited(t), p, servers.Options{})
		var missing *servers.MissingError
		if err == nil || errors.As(err, &missing) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", value, err)
		}
	}
}
