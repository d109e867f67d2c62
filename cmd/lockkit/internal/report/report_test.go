package report_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
	"github.com/lockkit/lock/conformance"
)

const (
	passed   = conformance.Passed
	failed   = conformance.Failed
	waived   = conformance.Waived
	unproven = conformance.Unproven
	absent   = conformance.Absent
)

// check makes a check of the promise before the slash.
func check(id string, s conformance.Status) report.Check {
	promise, _, _ := strings.Cut(id, "/")
	why := ""
	if s != passed {
		why = "because of " + id
	}
	return report.Check{ID: id, Promise: promise, Status: s, Why: why}
}

// row makes a backend whose checks are all well, but for some.
func row(promises string, but ...report.Check) report.Backend {
	b := report.Backend{
		Name:     "redis",
		Server:   report.Server{Product: "redis", Version: "7.0.15", Source: report.Started},
		Promises: strings.Fields(promises),
	}
	for _, id := range []string{"basic/a", "basic/b", "fencing/a", "fencing/b", "durable/a", "fair/a", "prompt/a"} {
		s := passed
		if promise, _, _ := strings.Cut(id, "/"); promise != "basic" && !strings.Contains(promises, promise) {
			s = absent
		}
		b.Checks = append(b.Checks, check(id, s))
	}
	for _, other := range but {
		for i, c := range b.Checks {
			if c.ID == other.ID {
				b.Checks[i] = other
			}
		}
	}
	return b
}

func one(b report.Backend) report.Backend { return report.New([]report.Backend{b}).Backends[0] }

func TestFitFollowsFromWhatWasProved(t *testing.T) {
	with := func(b report.Backend, change func(*report.Backend)) report.Backend {
		change(&b)
		return b
	}
	both := "fencing durable"
	for name, c := range map[string]struct {
		row report.Backend
		fit report.Fit
		why string
	}{
		"both proved":       {row(both), report.Correctness, "refuse old ones"},
		"durable missing":   {row("fencing fair prompt"), report.Efficiency, "no promise of durable"},
		"fencing missing":   {row(""), report.Efficiency, "no promise of fencing"},
		"fencing failed":    {row(both, check("fencing/b", failed)), report.Efficiency, "fencing failed: fencing/b"},
		"durable failed":    {row(both, check("durable/a", failed)), report.Efficiency, "durable failed: durable/a"},
		"durable unproven":  {row(both, check("durable/a", unproven)), report.Efficiency, "durable is promised but unproven: durable/a is unproven"},
		"fencing waived":    {row(both, check("fencing/a", waived)), report.Efficiency, "fencing is promised but unproven: fencing/a is waived"},
		"fair failed":       {row(both+" fair", check("fair/a", failed)), report.Correctness, "refuse old ones"},
		"basic failed":      {row(both, check("basic/b", failed)), report.None, "basic/b"},
		"basic waived":      {row(both, check("basic/b", waived)), report.Correctness, "refuse old ones"},
		"basic unproven":    {row(both, check("basic/b", unproven)), report.Efficiency, "basic/b is unproven"},
		"nothing checked":   {with(row(both), func(b *report.Backend) { b.Checks = nil }), report.None, "nothing was checked"},
		"only one process":  {with(row(both), func(b *report.Backend) { b.OneProcess = true }), report.Efficiency, "one process only"},
		"missing":           {with(row(both), func(b *report.Backend) { b.Server.Source = report.Missing; b.Why = "no redis" }), report.None, "no redis"},
		"not usable":        {with(row(both), func(b *report.Backend) { b.Error = "connection refused" }), report.None, "connection refused"},
		"interrupted":       {with(row(both), func(b *report.Backend) { b.Partial = "interrupted after 7" }), report.None, "interrupted after 7"},
		"reason of driver":  {with(row("fencing"), func(b *report.Backend) { b.NotPromised = map[string]string{"durable": "appendfsync is no"} }), report.Efficiency, "no promise of durable: appendfsync is no"},
		"a token unclaimed": {row("durable", check("fencing/a", failed)), report.Efficiency, "fencing failed"},
	} {
		t.Run(name, func(t *testing.T) {
			got := one(c.row)
			if got.Fit != c.fit || !strings.Contains(got.Why, c.why) {
				t.Errorf("%s: %s; want %s: …%s…", got.Fit, got.Why, c.fit, c.why)
			}
		})
	}
}

func TestAPromiseIsProvedOnlyIfAllItsChecksLooked(t *testing.T) {
	for name, c := range map[string]struct {
		row  report.Backend
		want report.State
	}{
		"all passed":            {row("fencing"), report.Proved},
		"not made":              {row(""), report.Absent},
		"one failed":            {row("fencing", check("fencing/a", failed)), report.Failed},
		"not made but seen":     {row("", check("fencing/a", failed)), report.Failed},
		"one unproven":          {row("fencing", check("fencing/a", unproven)), report.Unproven},
		"one waived":            {row("fencing", check("fencing/a", waived)), report.Unproven},
		"an optional part lack": {row("fencing", check("fencing/a", absent)), report.Proved},
		"none looked":           {row("fencing", check("fencing/a", absent), check("fencing/b", absent)), report.Unproven},
	} {
		if got := c.row.Promise("fencing"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestAReportIsBrokenByAFailedCheckOrAServerThatDoesNotServe(t *testing.T) {
	missing := report.Backend{Name: "etcd", Server: report.Server{Source: report.Missing}}
	dead := report.Backend{Name: "etcd", Error: "connection refused"}
	for _, c := range []struct {
		rows []report.Backend
		want bool
	}{
		{[]report.Backend{row("fencing"), missing}, false},
		{[]report.Backend{row("fencing", check("fencing/a", waived)), row("fair", check("fair/a", unproven))}, false},
		{[]report.Backend{row("fencing"), dead}, true},
		{[]report.Backend{row("fencing", check("fair/a", failed))}, true},
	} {
		if got := report.New(c.rows).Broken(); got != c.want {
			t.Errorf("%v, want %v: %+v", got, c.want, c.rows)
		}
	}
}

// The form that tools read. Fields may be added, none may go.
func TestTheJSONHasTheFieldsOfTheSchema(t *testing.T) {
	b := row("fencing", check("basic/b", failed))
	b.Speed = conformance.Speed{PairP50: 125 * time.Microsecond, PairP99: time.Millisecond, HandoffP50: 2 * time.Millisecond, HandoffMax: time.Second}
	b.Checks = b.Checks[:2]
	missing := report.Backend{Name: "etcd", Server: report.Server{Product: "etcd", Source: report.Missing}, Why: "no program", Mend: "apt-get install etcd-server"}
	var got bytes.Buffer
	if err := report.New([]report.Backend{b, missing}).Write(&got); err != nil {
		t.Fatal(err)
	}
	mustBeJSON(t, got.String(), `{"schema":1,"backends":[
		{"name":"redis","server":{"product":"redis","version":"7.0.15","source":"started"},"promises":["fencing"],
		 "checks":[{"id":"basic/a","promise":"basic","status":"passed","why":""},{"id":"basic/b","promise":"basic","status":"failed","why":"because of basic/b"}],
		 "speed":{"pair_p50_us":125,"pair_p99_us":1000,"handoff_p50_us":2000,"handoff_max_us":1000000},
		 "fit":"none","why":"a lock must not fail basic/b"},
		{"name":"etcd","server":{"product":"etcd","version":"","source":"missing"},"promises":[],"checks":[],
		 "speed":{"pair_p50_us":0,"pair_p99_us":0,"handoff_p50_us":0,"handoff_max_us":0},
		 "fit":"none","why":"no program","mend":"apt-get install etcd-server"}]}`)
}

func mustBeJSON(t *testing.T, got, want string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestAReportIsReadAsItWasWritten(t *testing.T) {
	want := report.New([]report.Backend{row("fencing durable"), row("")})
	want.Quick = true
	var text bytes.Buffer
	if err := want.Write(&text); err != nil {
		t.Fatal(err)
	}
	got, err := report.Read(&text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, want)
	}
}

func TestWhatIsNoReportIsRefused(t *testing.T) {
	for _, text := range []string{"", "[]", `{"schema":2}`, `{}`} {
		if _, err := report.Read(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
