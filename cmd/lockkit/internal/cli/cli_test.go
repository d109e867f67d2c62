package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lockkit/lock/cmd/lockkit/internal/cli"
	"github.com/lockkit/lock/cmd/lockkit/internal/report"
)

// command runs lockkit in this process.
func command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return commandIn(t.Context(), args...)
}

func commandIn(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = cli.Run(ctx, args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestAWrongCommandLineEndsWith2AndSaysWhatIsWrong(t *testing.T) {
	here := t.TempDir()
	for _, c := range []struct{ args, want string }{
		{"nonsense", "nonsense"},
		{"--nonsense", "nonsense"},
		{"comprae", "did you mean compare?"},
		{"redis://:secret@h.invalid", "verify URL"},
		{"compare --quik", "did you mean --quick?"},
		{"compare redis://:secret@h.invalid", "no arguments"},
		{"compare --nonsense", "nonsense"},
		{"compare extra", "extra"},
		{"compare --only consul", "postgres-cas"},
		{"compare --only redis,zookeper", "zookeper"},
		{"compare --url redis", "redis=redis://127.0.0.1:6379"},
		{"compare --url redis://:secret@h.invalid?a=b", "redis=redis://127.0.0.1:6379"},
		{"compare --url consul=redis://h.invalid", "consul"},
		{"compare --url redis=etcd://h.invalid", "scheme"},
		{"compare --url redis=redis://:secret@h.invalid:port", "port"},
		{"compare --url redis=redis://h.invalid --url redis=redis://h.invalid", "twice"},
		{"compare --url redis=redis://h.invalid --only etcd", "leaves out"},
		{"compare --url redis=redis://:secret@h.invalid?lock_tll=1s --only redis", "lock_ttl"},
		{"compare --url etcd=etcd://h.invalid?lock_ttl=soon", "lock_ttl"},
		{"compare --only memory --json " + here + "/no/such/directory", "--json"},
		{"verify", "needs the URL"},
		{"verify redis://a redis://b", "one URL"},
		{"verify nonsense", "has no scheme"},
		{"verify nope://h.invalid", "scheme"},
		{"verify redis://:secret@h.invalid?lock_tll=1s", "lock_ttl"},
		{"verify mem:// --only basics", "--list"},
		{"verify mem:// --ttl -1s", "--ttl"},
		{"version extra", "extra"},
		{"table", "one report"},
		{"table " + here + "/nothing.json", "nothing.json"},
	} {
		t.Run(c.args, func(t *testing.T) {
			status, stdout, stderr := command(t, strings.Fields(c.args)...)
			if status != cli.Usage || stdout != "" {
				t.Errorf("status %d, output %q", status, stdout)
			}
			if !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "--help") {
				t.Errorf("it does not tell of %q and the help: %s", c.want, stderr)
			}
			if strings.Contains(stderr, "secret") || strings.Contains(stderr, "Usage:") || strings.Count(stderr, "\n") > 4 {
				t.Errorf("too much is told: %s", stderr)
			}
		})
	}
}

func TestHelpShowsExamplesAndTheExitStatuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--help", "130"},
		{"", "compare"},
		{"help", "verify"},
		{"compare --help", "lockkit compare --quick"},
		{"verify --help", "random prefix"},
		{"version --help", "lockkit version --json"},
		{"table --help", "README.md"},
	} {
		status, stdout, stderr := command(t, strings.Fields(c.args)...)
		if status != cli.OK || stderr != "" || !strings.Contains(stdout, c.want) {
			t.Errorf("%q: status %d, %q not in %s%s", c.args, status, c.want, stdout, stderr)
		}
		for line := range strings.Lines(stdout) {
			if utf8.RuneCountInString(line) > report.Width+1 {
				t.Errorf("%q: too long: %s", c.args, line)
			}
		}
	}
}

func TestVersionTellsTheDriversCompiledIn(t *testing.T) {
	status, stdout, _ := command(t, "version", "--json")
	var v struct {
		Version, Go, Platform string
		Schemes               []string
	}
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || status != cli.OK {
		t.Fatalf("%d %v: %s", status, err, stdout)
	}
	if v.Version == "" || !strings.HasPrefix(v.Go, "go") || !strings.Contains(strings.Join(v.Schemes, " "), "redlock") {
		t.Errorf("%+v", v)
	}
	if _, stdout, _ = command(t, "version"); !strings.Contains(stdout, "zk://") {
		t.Error(stdout)
	}
	if _, flag, _ := command(t, "--version"); flag != stdout {
		t.Errorf("--version tells otherwise: %s", flag)
	}
}

func TestCompareListsWhatWouldRunAndStartsNothing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("LOCKTEST_REDIS_ADDR", "")
	t.Setenv("LOCKTEST_ETCD_ADDR", "10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379")
	status, stdout, stderr := command(t, "compare", "--list", "--url", "postgres-cas=postgres://u:secret@db.invalid/app")
	if status != cli.OK || stderr != "" {
		t.Fatalf("%d %s", status, stderr)
	}
	for _, want := range []string{"memory", "missing: no server program", "apt-get install", "given: 10.0.0.1:2379", "given: postgres://db.invalid/app", "5 redis"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "secret") {
		t.Error(stdout)
	}
	_, stdout, _ = command(t, "compare", "--list", "--json", "-", "--only", "redis")
	var list struct {
		WouldRun []struct{ Name, Needs, From, Mend string } `json:"would_run"`
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list.WouldRun) != 1 || list.WouldRun[0].Mend == "" {
		t.Errorf("%v: %s", err, stdout)
	}
}

func TestVerifyListsTheChecksWithTheirRules(t *testing.T) {
	status, stdout, _ := command(t, "verify", "--list", "--only", "basic/held,fair/")
	if status != cli.OK || strings.Contains(stdout, "prompt/wake") || !strings.Contains(stdout, "basic/held") || !strings.Contains(stdout, "fair/order") {
		t.Errorf("%d %s", status, stdout)
	}
}

func TestVerifyPrintsALineForEachCheckAndCountsThem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	status, stdout, stderr := command(t, "verify", "mem://verify?lock_ttl=5s", "--only", "basic/held,fencing/positive", "--json", file)
	if status != cli.OK {
		t.Fatalf("%d %s%s", status, stdout, stderr)
	}
	for _, want := range []string{"passed   basic/held", "passed   fencing/positive", "memory: 2 passed, 0 failed"} {
		if !strings.Contains(strings.ReplaceAll(stdout, "✓ ", ""), want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if !strings.Contains(stdout, "fit for: unknown (not all checks were run)") {
		t.Errorf("a verdict over a part of the checks:\n%s", stdout)
	}
	if !strings.HasPrefix(stderr, "memory: inside this process; creates and deletes locks") {
		t.Errorf("no warning: %s", stderr)
	}
	r := readReport(t, file)
	if r.Lockkit == "" || r.Go == "" || r.OS == "" || r.Arch == "" || r.Time == "" {
		t.Errorf("it does not tell what made it: %+v", r.Made)
	}
	if len(r.Backends) != 1 || len(r.Backends[0].Checks) != 2 || r.Backends[0].Fit != report.None || r.Backends[0].Partial == "" {
		t.Errorf("a part of the checks says nothing of the whole: %+v", r)
	}
}

func readReport(t *testing.T, file string) report.Report {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := report.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerifyWritesTheReportInPlaceOfTheLines(t *testing.T) {
	status, stdout, stderr := command(t, "verify", "mem://json", "--only", "basic/held", "--json", "-")
	r, err := report.Read(strings.NewReader(stdout))
	if err != nil || status != cli.OK || r.Backends[0].Server.Source != report.Given {
		t.Errorf("%d %v: %s", status, err, stdout)
	}
	if !strings.Contains(stderr, "basic/held") {
		t.Errorf("the lines are gone: %s", stderr)
	}
}

// lock_durable claims what memory does not keep; only a restart could show it.
func TestWhatCannotBeCausedIsUnprovenAndNoFailure(t *testing.T) {
	status, stdout, _ := command(t, "verify", "mem://durable?lock_durable=true", "--only", "durable")
	if status != cli.OK || !strings.Contains(stdout, "unproven durable/tokens") {
		t.Errorf("%d %s", status, stdout)
	}
}

func TestAServerThatDoesNotAnswerEndsWith1AndIsNamed(t *testing.T) {
	status, stdout, stderr := command(t, "verify", "redis://:secret@127.0.0.1:1")
	if status != cli.Broken || stdout != "" || !strings.Contains(stderr, "127.0.0.1:1") || strings.Contains(stderr, "secret") {
		t.Errorf("%d %s%s", status, stdout, stderr)
	}
	status, stdout, _ = command(t, "compare", "--only", "memory,redis", "--quick", "--json", "-", "--url", "redis=redis://:secret@127.0.0.1:1")
	if status != cli.Broken || strings.Contains(stdout, "secret") {
		t.Errorf("%d %s", status, stdout)
	}
	r, err := report.Read(strings.NewReader(stdout))
	if err != nil {
		t.Fatal(err)
	}
	row := r.Backends[1]
	if row.Fit != report.None || row.Server.Source != report.Given || !strings.Contains(row.Why, "127.0.0.1:1") {
		t.Errorf("%+v", row)
	}
}

func TestAMissingServerIsARowThatSaysHowToGetIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("LOCKTEST_REDIS_ADDR", "")
	file := filepath.Join(t.TempDir(), "report.json")
	status, stdout, stderr := command(t, "compare", "--only", "redis,redlock", "--json", file)
	if status != cli.OK {
		t.Fatalf("%d %s", status, stderr)
	}
	for _, want := range []string{"redlock  missing", "apt-get install", "LOCKTEST_REDIS_ADDR"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	for _, row := range readReport(t, file).Backends {
		if row.Server.Source != report.Missing || row.Fit != report.None || row.Why == "" || row.Mend == "" || len(row.Checks) != 0 {
			t.Errorf("%+v", row)
		}
	}
}

func TestARunThatIsInterruptedEndsWith130AndAPartialTable(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, stdout, stderr := commandIn(ctx, "compare", "--only", "memory")
	if status != cli.Interrupted || !strings.Contains(stdout, "interrupted") || strings.Contains(stdout, "How to read") {
		t.Errorf("%d %s", status, stdout)
	}
	if !strings.Contains(stderr, "interrupted: stopping the servers") {
		t.Errorf("it seems to hang: %s", stderr)
	}
	if status, _, _ := commandIn(ctx, "verify", "mem://"); status != cli.Interrupted {
		t.Errorf("%d", status)
	}
}

func TestTheTableOfADocumentIsMadeFromAReport(t *testing.T) {
	dir := t.TempDir()
	reportFile, document := filepath.Join(dir, "report.json"), filepath.Join(dir, "README.md")
	write(t, reportFile, `{"schema":1,"backends":[{"name":"memory","server":{"product":"memory","version":"in process","source":"started"},"promises":[],"checks":[],"fit":"none"}]}`)
	write(t, document, "a\n"+report.Begin+"\n"+report.End+"\nz\n")
	if status, _, stderr := command(t, "table", reportFile, "--into", document); status != cli.OK {
		t.Fatalf("%d %s", status, stderr)
	}
	got, err := os.ReadFile(document)
	if err != nil || !strings.Contains(string(got), "| memory |") || !strings.HasSuffix(string(got), "\nz\n") {
		t.Errorf("%v %s", err, got)
	}
	if status, stdout, _ := command(t, "table", reportFile); status != cli.OK || !strings.Contains(string(got), stdout) {
		t.Errorf("%d %s", status, stdout)
	}
	write(t, document, "no marks")
	if status, _, _ := command(t, "table", reportFile, "--into", document); status != cli.Usage {
		t.Errorf("%d", status)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
