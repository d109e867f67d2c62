package rules_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestARedisProgramsModuleGraphIsSmall makes a program of its own that imports
// only the Redis driver, and looks at the modules that its owner's go.sum and
// vulnerability scanner see: more than what is linked.
func TestARedisProgramsModuleGraphIsSmall(t *testing.T) {
	dir := program(t, "package main\n\nimport (\n\t_ \""+module+"\"\n\t_ \""+module+"/redisnode\"\n)\n\nfunc main() {}\n")
	for mod := range strings.Lines(run(t, dir, "go", "list", "-m", "all")) {
		for _, banned := range bannedModules {
			if strings.HasPrefix(mod, banned) {
				t.Errorf("the program's module graph has %s", strings.TrimSpace(mod))
			}
		}
	}
	mod := read(t, filepath.Join(dir, "go.mod"))
	for _, unused := range []string{"go.etcd.io/", "github.com/jackc/", "github.com/go-zookeeper/", "github.com/spf13/"} {
		if strings.Contains(mod, unused) {
			t.Errorf("the program requires a module of %s:\n%s", unused, mod)
		}
	}
}

// program makes a module of a program that uses this one, and returns its
// directory.
func program(t *testing.T, code string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example.com/app\n\ngo 1.26.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+root+"\n")
	write(t, filepath.Join(dir, "go.sum"), read(t, filepath.Join(root, "go.sum")))
	write(t, filepath.Join(dir, "main.go"), code)
	run(t, dir, "go", "mod", "tidy")
	return dir
}

// bannedModules are for tests and comparisons, or are whole servers.
var bannedModules = []string{
	"github.com/testcontainers/", "go.etcd.io/etcd/server/", "github.com/go-redsync/", "github.com/bsm/redislock",
	"github.com/redis/rueidis", "github.com/docker/docker",
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
