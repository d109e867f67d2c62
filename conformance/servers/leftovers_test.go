//go:build linux

package servers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkit/lock/conformance/servers"
)

// role makes the test binary a process that starts servers and waits to be killed.
const (
	role    = "LOCKKIT_SERVERS_ROLE"
	roleDir = "LOCKKIT_SERVERS_DIR"
)

func TestMain(m *testing.M) {
	if as := os.Getenv(role); as != "" {
		beKilled(as)
	}
	os.Exit(m.Run())
}

// remains are what a killed process could leave behind.
type remains struct {
	Pids []int
	Dirs []string
	Shm  []string
}

func beKilled(as string) {
	if as == "initdb" {
		beKilledInInitdb()
	}
	if as == "reaper-alone" {
		servers.OnlyTheReaper()
	}
	var r remains
	products := servers.Products()
	if as == "panics" {
		products = products[:1] // the end is the same for all
	}
	for _, p := range products {
		c, err := servers.Start(context.Background(), p, servers.Options{Members: 1})
		if errors.As(err, new(*servers.MissingError)) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		// As hard as can be: what stands does not see that its parent is gone.
		if err := c.Nodes[0].Pause(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		r.Dirs = append(r.Dirs, filepath.Dir(c.Nodes[0].Dir()))
		r.Shm = append(r.Shm, segments(c.Nodes[0].Dir())...)
	}
	r.Pids = descendants(os.Getpid())
	_ = json.NewEncoder(os.Stdout).Encode(r)
	if as == "panics" {
		panic("as a test may")
	}
	select {}
}

func beKilledInInitdb() {
	dir := os.Getenv(roleDir)
	go servers.Start(context.Background(), servers.Postgres, servers.Options{Dir: dir})
	_ = json.NewEncoder(os.Stdout).Encode(whenInitdbHasSharedMemory(dir))
	select {}
}

// whenInitdbHasSharedMemory waits for the moment at which most could be left behind.
func whenInitdbHasSharedMemory(parent string) remains {
	for {
		pids := descendants(os.Getpid())
		for _, pid := range pids {
			maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			if files := posixSegment.FindAllString(string(maps), -1); files != nil {
				dirs, _ := filepath.Glob(filepath.Join(parent, "lockkit-*"))
				return remains{Pids: pids, Dirs: append(dirs, files...)}
			}
		}
	}
}

var posixSegment = regexp.MustCompile(`/dev/shm/PostgreSQL\.\d+`)

func TestInitdbLeavesNothingEither(t *testing.T) {
	if _, err := servers.Look(servers.Postgres); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // for the user postgres
		t.Fatal(err)
	}
	mustLeaveNothing(t, startAndKill(t, "initdb", roleDir+"="+dir))
}

func TestStartThatIsGivenUpLeavesNothing(t *testing.T) {
	if _, err := servers.Look(servers.Postgres); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	given := make(chan error)
	go func() {
		_, err := servers.Start(ctx, servers.Postgres, servers.Options{})
		given <- err
	}()
	r := whenInitdbHasSharedMemory("")
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("a start that was given up: %v", err)
	}
	mustLeaveNothing(t, r)
}

func TestNothingIsLeftWhenTheProcessDies(t *testing.T) {
	for _, as := range []string{"killed", "reaper-alone", "panics"} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			r := startAndKill(t, as)
			if len(r.Pids) < 2*len(r.Dirs) || len(r.Dirs) == 0 {
				t.Fatalf("the child reported %+v: the test has not looked", r)
			}
			mustLeaveNothing(t, r)
		})
	}
}

func mustLeaveNothing(t *testing.T, r remains) {
	t.Helper()
	for _, pid := range r.Pids {
		eventually(t, func() error { return still(!gone(pid), "process", strconv.Itoa(pid)) })
	}
	for _, dir := range r.Dirs {
		eventually(t, func() error { return still(exists(dir), "directory", dir) })
	}
	for _, id := range r.Shm {
		eventually(t, func() error { return still(slices.Contains(sharedMemory(), id), "shared memory", id) })
	}
}

func still(there bool, what, name string) error {
	if there {
		return fmt.Errorf("%s %s is still there", what, name)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// startAndKill returns what the child had when it was killed.
func startAndKill(t *testing.T, as string, env ...string) (r remains) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), role+"="+as), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err = json.NewDecoder(stdout).Decode(&r)
	if as != "panics" {
		_ = cmd.Process.Kill()
	}
	// The pipes must close now: go test waits for them too.
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return r
}

// descendants lists the children of a process, and theirs.
func descendants(pid int) (all []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		_, after, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			kid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			all = append(append(all, kid), descendants(kid)...)
		}
	}
	return all
}

// segments returns the System V shared memory of a Postgres.
func segments(dir string) []string {
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return nil
	}
	return strings.Fields(strings.Split(string(text), "\n")[6])[1:]
}

// sharedMemory lists all System V shared memory of the machine.
func sharedMemory() (ids []string) {
	text, _ := os.ReadFile("/proc/sysvipc/shm")
	for line := range strings.Lines(string(text)) {
		ids = append(ids, strings.Fields(line)[1])
	}
	return ids
}

func TestStopLeavesNothing(t *testing.T) {
	for _, p := range servers.Products() {
		c := servers.For(t, p, servers.Options{})
		n := c.Nodes[0]
		if p == servers.Postgres {
			if err := n.Kill(); err != nil { // the case with a segment of shared memory that nobody removes
				t.Fatal(err)
			}
		}
		shm := segments(n.Dir())
		kids := descendants(os.Getpid())
		if err := n.Pause(); err != nil && p != servers.Postgres {
			t.Fatal(err)
		}
		c.Stop()
		c.Stop()
		for _, pid := range kids {
			if !gone(pid) {
				t.Errorf("%s: process %d is still there", p, pid)
			}
		}
		if left := descendants(os.Getpid()); len(left) > 0 {
			t.Errorf("%s: children %v are still there", p, left)
		}
		if dir := filepath.Dir(n.Dir()); exists(dir) {
			t.Errorf("%s is still there", dir)
		}
		for _, id := range shm {
			if slices.Contains(sharedMemory(), id) {
				t.Errorf("%s: shared memory %s is still there", p, id)
			}
		}
		eventually(t, func() error { return still(ourGoroutines() != "", "goroutine", ourGoroutines()) })
		if err := n.Restart(t.Context()); !errors.Is(err, servers.ErrStopped) {
			t.Errorf("%s: restart of a stopped node: %v", p, err)
		}
	}
}

// ourGoroutines returns the stacks of the goroutines that the package has started.
func ourGoroutines() string {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	var ours []string
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		if strings.Contains(stack, "created by github.com/lockkit/lock/conformance/servers.") {
			ours = append(ours, stack)
		}
	}
	return strings.Join(ours, "\n\n")
}

func TestServersOutliveTheThreadThatAskedForThem(t *testing.T) {
	t.Parallel()
	started := make(chan *servers.Cluster)
	var tid int
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		tid = syscall.Gettid()
		started <- servers.For(t, servers.Redis, servers.Options{})
	}()
	c := <-started
	eventually(t, func() error {
		task := fmt.Sprintf("/proc/self/task/%d", tid)
		return still(tid != os.Getpid() && exists(task), "thread", task)
	})
	put(t, c, c.Nodes[0])
}
