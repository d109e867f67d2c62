package report_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
	"github.com/lockkit/lock/conformance"
)

// sample has a row of each kind.
func sample() report.Report {
	speed := conformance.Speed{PairP50: 125 * time.Microsecond, PairP99: 1940 * time.Microsecond, HandoffP50: 280 * time.Microsecond, HandoffMax: 1150 * time.Millisecond}
	memory := row("fencing fair prompt")
	memory.Name, memory.Server, memory.OneProcess, memory.Speed = "memory", report.Server{Product: "memory", Version: "in process", Source: report.Started}, true, conformance.Speed{PairP50: 2 * time.Microsecond, PairP99: 9 * time.Microsecond, HandoffP50: 15 * time.Microsecond, HandoffMax: 90 * time.Microsecond}
	redlock := row("", check("basic/b", failed))
	redlock.Name, redlock.Server.Members, redlock.Speed = "redlock", 5, speed
	etcd := row("fencing durable")
	etcd.Name, etcd.Server, etcd.Speed = "etcd", report.Server{Product: "etcd", Version: "3.7.3", Source: report.Given, Members: 3}, speed
	zookeeper := report.Backend{Name: "zookeeper", Server: report.Server{Product: "zookeeper", Source: report.Missing},
		Why: "missing: no server program: looked for java on PATH", Mend: "apt-get install -y default-jre-headless libzookeeper-java, or name a running server in LOCKTEST_ZOOKEEPER_ADDR"}
	advisory := row("fencing", check("basic/a", waived), check("fencing/a", unproven))
	advisory.Name, advisory.Server.Product, advisory.Server.Version = "postgres-advisory", "postgres", "15.18"
	advisory.Warnings = []string{"fsync is off"}
	cas := report.Backend{Name: "postgres-cas", Server: report.Server{Product: "postgres", Source: report.Given}, Error: "connection refused"}
	r := report.New([]report.Backend{memory, redlock, etcd, zookeeper, advisory, cas})
	r.Quick = true
	return r
}

func text(t *testing.T, r report.Report, s report.Style) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const wantTable = `
                                    promises                     checks             pair, µs  handoff, ms
backend            server           fencing durable fair prompt  pass fail wvd unp   p50/p99      p50/max  fit
memory             in process       ✓       –       ✓    ✓          6    0   0   0   2.0/9.0    0.01/0.09  efficiency
redlock            redis 7.0.15 ×5  –       –       –    –          1    1   0   0  125/1940    0.28/1150  none
etcd               3.7.3 ×3*        ✓       ✓       –    –          5    0   0   0  125/1940    0.28/1150  correctness
zookeeper          missing                                                                                 none
postgres-advisory  15.18            ?       –       –    –          2    0   1   1                         efficiency
postgres-cas       not usable                                                                              none

Fit for
  memory             efficiency   one process only: every other process has locks of its own
  redlock            none         a lock must not fail basic/b
  etcd               correctness  tokens rise and outlive a restart: have the store of the data refuse old ones
  zookeeper          none         missing: no server program: looked for java on PATH
                                  apt-get install -y default-jre-headless libzookeeper-java, or name a running server in
                                  LOCKTEST_ZOOKEEPER_ADDR
  postgres-advisory  efficiency   fencing is promised but unproven: fencing/a is unproven
  postgres-cas       none         connection refused

Failed checks
  redlock  basic/b  because of basic/b

Waived: can't be passed by this backend, and why that does no harm
  postgres-advisory  basic/a  because of basic/a

Unproven: could not be looked at
  postgres-advisory  fencing/a  because of fencing/a

Warnings
  postgres-advisory  fsync is off

How to read this
`

func TestTheTableTellsEverythingAboutEachBackend(t *testing.T) {
	got := text(t, sample(), report.Style{Unicode: true})
	if !strings.HasPrefix("\n"+got, wantTable) {
		t.Errorf("got:\n%s\nwant:\n%s", got, wantTable)
	}
}

func TestTheLegendExplainsWhatIsThere(t *testing.T) {
	got := text(t, sample(), report.Style{Unicode: true})
	for _, want := range []string{"fencing", "durable", "fair", "prompt", "efficiency", "correctness", "waived", "unproven", "running server", "--quick"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not explained", want)
		}
	}
	r := report.New([]report.Backend{row("fencing")})
	if got := text(t, r, report.Style{}); strings.Contains(got, "--quick") || strings.Contains(got, "running server") || strings.Contains(got, "interrupted") {
		t.Errorf("it explains what is not there:\n%s", got)
	}
	r.Interrupted = true
	if got := text(t, r, report.Style{}); !strings.Contains(got, "interrupted") {
		t.Error("an interrupted run looks like a whole one")
	}
}

func TestARunThatFinishedNothingHasNoLegendAndNoVerdict(t *testing.T) {
	b := row("fencing durable")
	b.Partial, b.Checks = "interrupted after 2 of 8 checks", b.Checks[:2]
	r := report.New([]report.Backend{b})
	r.Interrupted = true
	got := text(t, r, report.Style{Unicode: true})
	if strings.Contains(got, "How to read this") || strings.Contains(got, "none") {
		t.Errorf("it says more than is known:\n%s", got)
	}
	if !strings.Contains(got, "redis  –  unknown (not all checks were run): interrupted after 2 of 8 checks") {
		t.Errorf("got:\n%s", got)
	}
	if r.Backends[0].Fit != report.None {
		t.Errorf("to tools: %s", r.Backends[0].Fit)
	}
}

func TestAReasonThatSeveralBackendsShareIsToldOnce(t *testing.T) {
	unread := func(name, why string) report.Backend {
		b := row("fencing")
		b.Name, b.NotPromised = name, map[string]string{"durable": why}
		return b
	}
	etcd, redis := unread("etcd", "etcd 127.0.0.1:1: not read yet: the log"), unread("redis", "not read yet: appendfsync")
	const note = "No server backend promises durable"
	got := text(t, report.New([]report.Backend{etcd, redis}), report.Style{})
	if strings.Count(got, note) != 1 || strings.Contains(got, "127.0.0.1") || strings.Contains(got, "appendfsync") {
		t.Errorf("got:\n%s", got)
	}
	proved := row("fencing durable")
	for _, rows := range [][]report.Backend{{redis}, {etcd, redis, proved}} {
		if got := text(t, report.New(rows), report.Style{}); strings.Contains(got, note) || !strings.Contains(got, "appendfsync") {
			t.Errorf("got:\n%s", got)
		}
	}
}

func TestNoLineIsTooLong(t *testing.T) {
	r := sample()
	for i := range r.Backends {
		b := &r.Backends[i]
		b.Speed = conformance.Speed{PairP50: 15678 * time.Microsecond, PairP99: 45678 * time.Microsecond, HandoffP50: 1234 * time.Millisecond, HandoffMax: 2345 * time.Millisecond}
		b.Why = strings.Repeat("all work and no play ", 20)
	}
	for line := range strings.Lines(text(t, r, report.Style{Unicode: true})) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > report.Width {
			t.Errorf("%d: %s", n, line)
		}
	}
}

func TestWithoutUnicodeAllIsASCII(t *testing.T) {
	got := text(t, sample(), report.Style{})
	for _, r := range got {
		if r > 126 {
			t.Fatalf("%q in:\n%s", r, got)
		}
	}
	for _, want := range []string{"yes", "redis 7.0.15 x5", "pair, us"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
}

func TestColoursAreOnlyWhereTheyAreWanted(t *testing.T) {
	if got := text(t, sample(), report.Style{Unicode: true}); strings.Contains(got, "\x1b") {
		t.Error("colours where there are none")
	}
	coloured := text(t, sample(), report.Style{Unicode: true, Colour: true})
	if !strings.Contains(coloured, "\x1b[32m✓\x1b[0m") {
		t.Error("no colours")
	}
	if text(t, sample(), report.Style{Unicode: true}) != strip(coloured) {
		t.Error("colours shift the columns")
	}
}

func strip(s string) string {
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m"} {
		s = strings.ReplaceAll(s, code, "")
	}
	return s
}

func TestALineTellsOfOneCheck(t *testing.T) {
	r := conformance.Result{ID: "basic/held", Status: failed, Why: "A held name is refused: it was granted", Took: 1234 * time.Millisecond}
	if got, want := report.Line(r, report.Style{Unicode: true}), "✗ failed   basic/held                             1.234s  A held name is refused: it was granted"; got != want {
		t.Errorf("\n%q\n%q", got, want)
	}
	r.Status, r.Why = passed, ""
	if got, want := report.Line(r, report.Style{}), "passed   basic/held                             1.234s"; got != want {
		t.Errorf("\n%q\n%q", got, want)
	}
}

const wantMarkdown = `
| Backend | Server | Fencing | Durable | Fair | Prompt | Checks passed | Acquire + release, µs (p50/p99) | Hand-off, ms (p50/max) | Fit for |
|---|---|---|---|---|---|---|---|---|---|
| memory | in process | ✓ | – | ✓ | ✓ | 6 of 6 | 2.0/9.0 | 0.01/0.09 | efficiency |
| redlock | redis 7.0.15 ×5 | – | – | – | – | 1 of 2 | 125/1940 | 0.28/1150 | none |
| etcd | 3.7.3 ×3 | ✓ | ✓ | – | – | 5 of 5 | 125/1940 | 0.28/1150 | correctness |
| zookeeper | missing |  |  |  |  |  |  |  | none |
| postgres-advisory | 15.18 | ? | – | – | – | 2 of 4, 1 waived, 1 unproven |  |  | efficiency |
| postgres-cas | not usable |  |  |  |  |  |  |  | none |
`

func TestTheMarkdownTableIsMadeFromTheReport(t *testing.T) {
	if got := "\n" + sample().Markdown(); got != wantMarkdown {
		t.Errorf("got:%s\nwant:%s", got, wantMarkdown)
	}
}

func TestATableIsPutBetweenTheMarksOfADocument(t *testing.T) {
	document := "before\n" + report.Begin + "\nold\n" + report.End + "\nafter\n"
	got, err := report.Insert(document, "new\n")
	if want := "before\n" + report.Begin + "\nnew\n" + report.End + "\nafter\n"; err != nil || got != want {
		t.Errorf("%q %v", got, err)
	}
	if again, err := report.Insert(got, "new\n"); err != nil || again != got {
		t.Errorf("%q %v", again, err)
	}
	for _, bad := range []string{"", report.Begin, report.End + report.Begin} {
		if _, err := report.Insert(bad, "new"); err == nil {
			t.Errorf("%q has no place for it", bad)
		}
	}
}
