package cli_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkit/lock/cmd/lockkit/internal/cli"
	"github.com/lockkit/lock/cmd/lockkit/internal/report"
	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/conformance/servers"
)

// beLockkit has the test program be lockkit, for what needs a process of its
// own.
const beLockkit = "LOCKKIT_TEST_BE_LOCKKIT"

func TestMain(m *testing.M) {
	if os.Getenv(beLockkit) != "" {
		os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// needsRedis skips, or fails where LOCKTEST_REQUIRE wants the server.
func needsRedis(t *testing.T) {
	t.Helper()
	if _, err := servers.Look(servers.Redis); err != nil && servers.Required(servers.Redis) {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
}

func TestCompareChecksAndMeasuresRealServers(t *testing.T) {
	needsRedis(t)
	t.Setenv("TMPDIR", t.TempDir())
	status, stdout, stderr := command(t, "compare", "--quick", "--only", "memory,redis", "--json", "-")
	r, err := report.Read(strings.NewReader(stdout))
	if err != nil || len(r.Backends) != 2 || !r.Quick {
		t.Fatalf("%d %v: %s%s", status, err, stdout, stderr)
	}
	// Whether the drivers keep their promises is the matter of their own tests.
	if r.Broken() != (status == cli.Broken) || !r.Broken() != (status == cli.OK) {
		t.Errorf("exit status %d\n%s", status, stdout)
	}
	for _, row := range r.Backends {
		if len(row.Checks) != len(conformance.Checks()) || row.Speed.PairP50 <= 0 || row.Speed.HandoffMax < row.Speed.HandoffP50 {
			t.Errorf("%+v", row)
		}
		if !r.Broken() && (row.Fit != report.Efficiency || row.Promise("fencing") == report.Absent) {
			t.Errorf("%s: fit %s, fencing %v", row.Name, row.Fit, row.Promise("fencing"))
		}
	}
	if redis := r.Backends[1].Server; redis.Product == "" || redis.Version == "" {
		t.Errorf("%+v", redis)
	}
	for _, want := range []string{"redis: ", "hand-off", "passed"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no progress with %q:\n%s", want, stderr)
		}
	}
	mustBeEmpty(t, os.Getenv("TMPDIR"))
}

func mustBeEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v left behind: %v", err, left)
	}
}

func TestCtrlCPrintsWhatWasFoundAndLeavesNothing(t *testing.T) {
	if os.Getenv("LOCKTEST_REDIS_ADDR") != "" {
		t.Skip("it is about servers that are started")
	}
	needsRedis(t)
	tmp := t.TempDir()
	// The server runs, the checks begin.
	status, stdout := interruptAt(t, "redis: acquire", tmp, "compare", "--only", "memory,redis")
	if status != cli.Interrupted {
		t.Errorf("exit status %d", status)
	}
	if !strings.Contains(stdout, "interrupted") || !strings.Contains(stdout, "redis") {
		t.Errorf("no partial table:\n%s", stdout)
	}
	mustBeEmpty(t, tmp)
	mustNotRun(t, tmp)
}

// interruptAt runs lockkit as a process of its own, and does what Ctrl-C does
// when a line of its progress begins so.
func interruptAt(t *testing.T, line, tmp string, args ...string) (status int, stdout string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), beLockkit+"=1", "TMPDIR="+tmp)
	var out bytes.Buffer
	cmd.Stdout = &out
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	for log := bufio.NewScanner(stderr); log.Scan(); { // to the end, or it could not write
		if strings.HasPrefix(log.Text(), line) {
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), out.String()
}

// mustNotRun looks for processes that were started with a directory.
func mustNotRun(t *testing.T, dir string) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(dir)) {
			t.Errorf("%s still runs: %q", file, text)
		}
	}
}
