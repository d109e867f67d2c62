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
	if status != cli.OK {
		t.Fatalf("%d\n%s%s", status, stdout, stderr)
	}
	r, err := report.Read(strings.NewReader(stdout))
	if err != nil || len(r.Backends) != 2 || !r.Quick {
		t.Fatalf("%v: %s", err, stdout)
	}
	for _, row := range r.Backends {
		if len(row.Checks) != len(conformance.Checks()) || row.Fit != report.Efficiency || row.Speed.PairP50 <= 0 || row.Speed.HandoffMax < row.Speed.HandoffP50 {
			t.Errorf("%+v", row)
		}
		if row.Promise("fencing") != report.Proved || row.Promise("durable") != report.Absent {
			t.Errorf("%s: fencing %v, durable %v", row.Name, row.Promise("fencing"), row.Promise("durable"))
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
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	cmd := exec.Command(program, "compare", "--only", "memory,redis")
	cmd.Env = append(os.Environ(), beLockkit+"=1", "TMPDIR="+tmp)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	log := bufio.NewScanner(stderr)
	for log.Scan() {
		if strings.HasPrefix(log.Text(), "redis: acquire") { // the server runs, the checks begin
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	for log.Scan() { // to its end, or the process could not write
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.Interrupted {
		t.Errorf("exit status %d", code)
	}
	if !strings.Contains(stdout.String(), "interrupted") || !strings.Contains(stdout.String(), "redis") {
		t.Errorf("no partial table:\n%s", stdout.String())
	}
	mustBeEmpty(t, tmp)
	mustNotRun(t, tmp)
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
