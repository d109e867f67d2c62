package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/internal/backends"
)

// How much runs at once on a machine with two processors.
const startsAtOnce = 3

// suitesAtOnce is one where there is time: each suite runs many checks at once
// as it is, and a service that is kept from its work by another's suite would
// be blamed for it. A quick comparison overlaps the waiting of some.
func (f compareFlags) suitesAtOnce() int {
	if f.quick {
		return 3
	}
	return 1
}

// A comparison is one run over some backends: all servers are started, then the
// speed of each backend is measured while nothing else of ours runs, and then
// the suites run.
type comparison struct {
	flags    compareFlags
	jobs     []*job
	progress *progress
}

// A job is one backend of a comparison.
type job struct {
	backend backends.Backend
	target  *backends.Target // nil before it was started, and if it could not be
	row     report.Backend

	mu      sync.Mutex
	results []conformance.Result // as they come
	ended   bool
}

// run returns an error if nothing could be checked because what was asked for
// is wrong.
func (c *comparison) run(ctx context.Context) (report.Report, error) {
	defer c.close()
	if err := c.meetGiven(ctx); err != nil {
		return report.Report{}, err
	}
	c.start(ctx)
	c.measure(ctx)
	if ctx.Err() == nil {
		c.verify(ctx)
	}
	return c.report(ctx), nil
}

func (c *comparison) close() {
	c.progress.doing(func() string { return "stopping the servers" })
	each(c.jobs, max(1, len(c.jobs)), func(j *job) {
		if j.target != nil {
			j.target.Close()
		}
	})
}

// each calls f for every job, n at a time.
func each(jobs []*job, n int, f func(*job)) {
	turns := make(chan struct{}, n)
	var running sync.WaitGroup
	for _, j := range jobs {
		turns <- struct{}{}
		running.Go(func() {
			f(j)
			<-turns
		})
	}
	running.Wait()
}

func (c *comparison) report(ctx context.Context) report.Report {
	var rows []report.Backend
	for _, j := range c.jobs {
		if ctx.Err() != nil && len(j.row.Checks) == 0 && j.row.Server.Source != report.Missing {
			j.row.Partial = "interrupted before its checks"
		}
		rows = append(rows, j.row)
	}
	r := report.New(rows)
	r.Quick, r.Interrupted = c.flags.quick, ctx.Err() != nil
	return r
}

// meetGiven meets the servers that the user named before any is started: what
// is wrong with a URL or a password ends the run.
func (c *comparison) meetGiven(ctx context.Context) error {
	for _, j := range c.jobs {
		if j.target == nil {
			continue
		}
		c.progress.doing(func() string { return "opening " + j.target.String() })
		var fault *drivers.ConfigError
		if err := j.meet(ctx); errors.As(err, &fault) {
			return usage("--url %s: %s", j.backend.Name, j.target.Redact(fault.Error()))
		}
		c.present(j)
	}
	return nil
}

// start starts the servers of all other jobs.
func (c *comparison) start(ctx context.Context) {
	c.progress.doing(func() string { return "starting servers" })
	each(c.jobs, startsAtOnce, func(j *job) {
		if j.target != nil {
			return
		}
		t, err := backends.Start(ctx, j.backend, backends.Options{Quick: c.flags.quick, Logf: c.logf})
		if err == nil {
			j.target = t
			err = j.meet(ctx)
		}
		if err != nil {
			j.couldNot(ctx, err)
		}
		c.present(j)
	})
}

// logf is for what the servers and the suites tell.
func (c *comparison) logf(format string, args ...any) {
	if c.flags.verbose {
		c.progress.say(format, args...)
	}
}

// meet opens the backend once and fills in what its live server tells.
func (j *job) meet(ctx context.Context) error {
	t := j.target
	j.row = report.Backend{Name: t.Name, OneProcess: t.OneProcess,
		Server: report.Server{Product: string(t.Product), Source: report.Source(t.Source), Members: t.Servers}}
	r, err := t.Meet(ctx)
	if err != nil {
		j.couldNot(ctx, err)
		return err
	}
	j.row.Server.Product = r.Product
	j.row.Server.Version, _, _ = strings.Cut(r.Version, " (") // that of the package
	for _, w := range r.Warnings {
		j.row.Warnings = append(j.row.Warnings, t.Redact(w))
	}
	j.row.NotPromised = map[string]string{}
	for _, p := range r.Promises {
		if p.Made {
			j.row.Promises = append(j.row.Promises, p.Guarantee.String())
		} else {
			j.row.NotPromised[p.Guarantee.String()] = t.Redact(p.Why)
		}
	}
	return nil
}

// couldNot makes the row of a backend that could not be used.
func (j *job) couldNot(ctx context.Context, err error) {
	j.row.Name = j.backend.Name
	var missing *servers.MissingError
	switch {
	case ctx.Err() != nil:
		j.row.Server = report.Server{Product: string(j.backend.Product), Source: report.Started}
		j.row.Partial = errInterrupted.Error()
	case errors.As(err, &missing):
		j.row.Server = report.Server{Product: string(missing.Product), Source: report.Missing}
		j.row.Why, j.row.Mend = "missing: "+missing.Reason, missing.Hint
	case j.target == nil:
		j.row.Server = report.Server{Product: string(j.backend.Product), Source: report.Started}
		j.row.Error = firstLine(err.Error())
	default:
		j.row.Error = firstLine(j.target.Redact(err.Error()))
	}
}

// firstLine leaves out a server's output, which --verbose shows.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// usable tells whether there is something to run on.
func (j *job) usable() bool { return j.target != nil && j.row.Error == "" && j.row.Partial == "" }

// present says what became of a job's servers.
func (c *comparison) present(j *job) {
	switch {
	case j.row.Partial != "":
	case j.row.Server.Source == report.Missing:
		c.progress.say("%s: %s", j.backend.Name, j.row.Why)
	case j.row.Error != "":
		c.progress.say("%s: not usable: %s", j.backend.Name, j.row.Error)
	case j.row.OneProcess:
		c.progress.say("%s: %s", j.backend.Name, j.target)
	default:
		s := j.row.Server
		c.progress.say("%s: %s %s, %s: %s", j.backend.Name, s.Product, s.Version, s.Source, j.target)
	}
}

func (c *comparison) measure(ctx context.Context) {
	for _, j := range c.jobs {
		if !j.usable() || ctx.Err() != nil {
			continue
		}
		c.progress.doing(func() string { return "measuring " + j.backend.Name })
		speed, err := conformance.Measure(ctx, j.target.MeasureConfig(c.flags.quick))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			j.row.Warnings = append(j.row.Warnings, "the speed could not be measured: "+j.target.Redact(err.Error()))
			c.progress.say("%s: the speed could not be measured: %s", j.backend.Name, j.target.Redact(err.Error()))
		default:
			j.row.Speed = speed
			c.progress.say("%s: acquire + release %v, hand-off %v (medians)", j.backend.Name, round(speed.PairP50), round(speed.HandoffP50))
		}
	}
}

// round keeps three digits.
func round(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

func (c *comparison) verify(ctx context.Context) {
	usable := slices.DeleteFunc(slices.Clone(c.jobs), func(j *job) bool { return !j.usable() })
	slices.SortStableFunc(usable, func(a, b *job) int { return cmp.Compare(b.target.TTL(), a.target.TTL()) }) // the longest first
	c.progress.doing(func() string { return checking(usable) })
	each(usable, c.flags.suitesAtOnce(), func(j *job) { c.verifyOne(ctx, j) })
}

// checking is the line that tells how far the suites are.
func checking(jobs []*job) string {
	done, all := 0, len(jobs)*len(conformance.Checks())
	var parts []string
	for _, j := range jobs {
		n, ended := j.count()
		done += n
		if n > 0 && !ended {
			parts = append(parts, fmt.Sprintf("%s %d", j.backend.Name, n))
		}
	}
	return fmt.Sprintf("%d of %d checks: %s", done, all, strings.Join(parts, ", "))
}

func (j *job) count() (done int, ended bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.results), j.ended
}

func (c *comparison) verifyOne(ctx context.Context, j *job) {
	cfg := j.target.Config()
	cfg.Logf = c.logf
	cfg.Progress = func(r conformance.Result) {
		if ctx.Err() == nil && j.add(r) {
			c.progress.say("%s: %s failed: %s", j.backend.Name, r.ID, j.target.Redact(r.Why))
		}
	}
	results := conformance.Verify(ctx, cfg)
	if ctx.Err() != nil { // those that ended after it say nothing
		results = inOrder(j.results)
		j.row.Partial = fmt.Sprintf("interrupted after %d of %d checks", len(results), len(conformance.Checks()))
	}
	j.row.Checks = report.Checks(results, j.target.Redact)
	j.mu.Lock()
	j.ended = true
	j.mu.Unlock()
	c.progress.say("%s: %s", j.backend.Name, conformance.Summary(results))
}

// add reports whether the check failed.
func (j *job) add(r conformance.Result) (failed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.results = append(j.results, r)
	return r.Status == conformance.Failed
}

// inOrder sorts results as the catalogue is.
func inOrder(results []conformance.Result) []conformance.Result {
	place := map[string]int{}
	for i, check := range conformance.Checks() {
		place[check.ID] = i
	}
	slices.SortFunc(results, func(a, b conformance.Result) int { return place[a.ID] - place[b.ID] })
	return results
}
