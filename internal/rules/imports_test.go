// Package rules tests the shape of the module: who may import whom.
package rules_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/lockkit/lock"

// A pkg is what go list tells of one package.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string // direct, without those of tests
	Deps       []string // all
}

func list(t *testing.T, patterns ...string) map[string]pkg {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Standard,Imports,Deps"}, patterns...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	pkgs := map[string]pkg{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[p.ImportPath] = p
	}
}

// A rule says which packages of this module, and which client libraries, a
// package may import directly. The standard library is free to all.
type rule struct {
	why   string
	allow []string // a trailing /... allows all below
}

const why = "data flows one way: lock → drivers → server; "

var rules = map[string]rule{
	"":                     {why + "the engine knows no backend, so that a program links just those it imports", []string{module + "/drivers"}},
	"/drivers":             {why + "the contract costs a third party no dependency", nil},
	"/drivers/memory":      {why + "the reference needs nothing", []string{module + "/drivers"}},
	"/redisnode":           {why + "a driver knows its own service", []string{module + "/drivers", "github.com/redis/go-redis/v9/..."}},
	"/redlock":             {why + "redlock is made of Redis nodes, and no other driver is made of another", []string{module + "/drivers", module + "/redisnode", "github.com/redis/go-redis/v9/..."}},
	"/etcdlease":           {why + "a driver knows its own service", []string{module + "/drivers", "go.etcd.io/etcd/...", "google.golang.org/grpc/...", "go.uber.org/zap/..."}},
	"/zkelection":          {why + "a driver knows its own service", []string{module + "/drivers", "github.com/go-zookeeper/zk/..."}},
	"/pglock":              {why + "a driver knows its own service", []string{module + "/drivers", "github.com/jackc/pgx/v5/..."}},
	"/conformance":         {"third parties run the suite on drivers that it does not know", []string{module, module + "/drivers"}},
	"/conformance/servers": {"whoever only wants a server for a test needs no client library", nil},
	"/conformance/faults":  {"whoever only wants a fault needs no client library", nil},
}

func allowed(path string, allow []string) bool {
	return slices.ContainsFunc(allow, func(a string) bool {
		below, all := strings.CutSuffix(a, "/...")
		return path == a || all && (path == below || strings.HasPrefix(path, below+"/"))
	})
}

func TestImportsFollowTheRules(t *testing.T) {
	pkgs := list(t, module+"/...")
	for path, r := range rules {
		p, exists := pkgs[module+path]
		if !exists {
			t.Logf("no package %s%s yet", module, path)
			continue
		}
		for _, imported := range p.Imports {
			if !pkgs[imported].Standard && imported != "C" && !allowed(imported, r.allow) {
				t.Errorf("%s%s imports %s: %s", module, path, imported, r.why)
			}
		}
	}
}

func TestEveryLibraryPackageHasARule(t *testing.T) {
	free := []string{"/cmd/...", "/drivers/all", "/examples/...", "/internal/..."}
	for path, p := range list(t, module+"/...") {
		below, ours := strings.CutPrefix(path, module)
		if _, ruled := rules[below]; !ours || p.Standard || ruled || below != "" && !strings.HasPrefix(below, "/") {
			continue
		}
		if !allowed(below, free) {
			t.Errorf("%s has no rule: say whom it may import", path)
		}
	}
}

func TestARedisProgramLinksNothingElse(t *testing.T) {
	banned := map[string]string{
		"go.etcd.io/":                   "etcd",
		"google.golang.org/grpc":        "etcd's transport",
		"github.com/jackc/":             "Postgres",
		"github.com/go-zookeeper/":      "ZooKeeper",
		"github.com/spf13/":             "the command's",
		module + "/conformance":         "the test suite",
		"github.com/testcontainers/":    "containers",
		"github.com/go-redsync/":        "a rival",
		"github.com/bsm/redislock":      "a rival",
		"github.com/redis/rueidis":      "a rival",
		"github.com/stretchr/testify":   "a test library",
		"github.com/docker/":            "containers",
		"go.etcd.io/etcd/server":        "an etcd server",
		"github.com/anishathalye/":      "a checker",
		"github.com/alicebob/miniredis": "a fake",
	}
	for path := range list(t, module, module+"/redisnode") {
		for prefix, what := range banned {
			if strings.HasPrefix(path, prefix) {
				t.Errorf("a program with only redisnode links %s (%s)", path, what)
			}
		}
	}
}
