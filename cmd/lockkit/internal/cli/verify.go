package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/internal/backends"
)

type verifyFlags struct {
	list    bool
	verbose bool
	only    []string
	json    string
	ttl     time.Duration
}

const verifyLong = `verify runs the conformance suite against one backend that is running, named by
its URL. It creates and deletes locks under a random prefix and touches nothing
else. What a backend keeps of every name that was ever locked stays: in Redis a
counter for seven days, in Postgres a row for ever, some hundreds of each. It
stops no server, so that what must outlive a restart is unproven.

lock_ttl and the other settings of package lock in the URL play no part; --ttl
is the shortest time to live that the checks ask for.`

const verifyExample = `  lockkit verify redis://127.0.0.1:6379
  lockkit verify 'postgres://app:secret@db/app?lock_mode=advisory' --json report.json
  lockkit verify etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 --only basic/wait,fair
  lockkit verify --list`

func newVerify() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use:     "verify URL",
		Short:   "Check one running backend",
		Long:    verifyLong,
		Example: verifyExample,
		Args:    oneURL,
		RunE:    func(c *cobra.Command, args []string) error { return verify(c, args, f) },
	}
	c.Flags().StringSliceVar(&f.only, "only", nil, "run only the checks whose ids begin with `PREFIXES`, such as basic/wait,fair")
	c.Flags().StringVar(&f.json, "json", "", "write the report as JSON to `FILE`; - writes it to the output in place of the lines")
	c.Flags().BoolVar(&f.list, "list", false, "list the checks with their rules, and run none")
	c.Flags().DurationVar(&f.ttl, "ttl", 0, "the shortest time to live to ask for (default: what suits the product)")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "show what the suite logs")
	return c
}

func verify(c *cobra.Command, args []string, f verifyFlags) error {
	checks, err := f.chosen()
	if err != nil {
		return err
	}
	if f.list {
		return listChecks(c.OutOrStdout(), checks)
	}
	if len(args) == 0 {
		return usage("verify needs the URL of a backend, such as redis://127.0.0.1:6379")
	}
	t, err := f.target(args[0])
	if err != nil {
		return err
	}
	defer t.Close()
	out, err := openOutput(c.OutOrStdout(), f.json)
	if err != nil {
		return err
	}
	v := &verification{flags: f, job: job{backend: t.Backend, target: t}, lines: c.OutOrStdout(), log: c.ErrOrStderr()}
	if f.json == "-" {
		v.lines = c.ErrOrStderr()
	}
	r, err := v.run(c.Context(), checks)
	if err != nil {
		return err
	}
	return out.conclude(r)
}

func (f verifyFlags) target(raw string) (*backends.Target, error) {
	b, err := backends.Of(raw)
	if err != nil {
		return nil, err
	}
	t, err := backends.At(b, raw)
	if err != nil {
		return nil, err
	}
	if f.ttl < 0 {
		return nil, usage("--ttl %v is not positive", f.ttl)
	}
	if f.ttl > 0 {
		t.SetTTL(f.ttl)
	}
	return t, nil
}

// chosen are the checks that --only leaves.
func (f verifyFlags) chosen() ([]conformance.Check, error) {
	prefixes := split(f.only)
	if len(prefixes) == 0 {
		return conformance.Checks(), nil
	}
	var chosen []conformance.Check
	used := map[string]bool{}
	for _, check := range conformance.Checks() {
		for _, prefix := range prefixes {
			if strings.HasPrefix(check.ID, prefix) {
				if !used[check.ID] {
					chosen = append(chosen, check)
				}
				used[check.ID], used[prefix] = true, true
			}
		}
	}
	for _, prefix := range prefixes {
		if !used[prefix] {
			return nil, usage("--only: no check's id begins with %q: see lockkit verify --list", prefix)
		}
	}
	return chosen, nil
}

func listChecks(w io.Writer, checks []conformance.Check) error {
	for _, check := range checks {
		line := report.Wrap(fmt.Sprintf("%-38s ", check.ID), check.Rule, styleOf(w))
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

// conclude is finish for a run whose lines were printed as they came.
func (o *output) conclude(r report.Report) error {
	table := o.stdout
	if o.file != "-" {
		o.stdout = io.Discard
	}
	err := o.finish(r)
	o.stdout = table
	return err
}

// A verification is one run of the suite on a given backend.
type verification struct {
	job
	flags verifyFlags
	lines io.Writer // a line for each check
	log   io.Writer
	print sync.Mutex
}

func (v *verification) run(ctx context.Context, checks []conformance.Check) (report.Report, error) {
	if err := v.meet(ctx); err != nil {
		if ctx.Err() != nil {
			return report.Report{}, errInterrupted
		}
		return report.Report{}, &redacted{err, v.target.Redact(err.Error())}
	}
	cfg := v.config(ctx, checks)
	fmt.Fprintln(v.log, v.announce(cfg.Prefix))
	defer onInterrupt(ctx, func() { v.tell("interrupted: ending the checks…") })()
	v.keep(ctx, conformance.Verify(ctx, cfg), checks)
	r := report.New([]report.Backend{v.row})
	r.Interrupted = ctx.Err() != nil
	fmt.Fprintln(v.lines, v.summary(r.Backends[0]))
	return r, nil
}

// A redacted error is another one with a text that may be shown.
type redacted struct {
	err  error
	text string
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.err }

func (v *verification) config(ctx context.Context, checks []conformance.Check) conformance.Config {
	chosen := map[string]bool{}
	for _, check := range checks {
		chosen[check.ID] = true
	}
	cfg := v.target.Config()
	cfg.Prefix = "cf-" + rand.Text()[:10] + "-"
	cfg.Only = func(id string) bool { return chosen[id] }
	cfg.Logf = v.logf
	style := styleOf(v.lines)
	cfg.Progress = func(r conformance.Result) {
		if ctx.Err() == nil {
			v.add(r)
			r.Why = v.target.Redact(r.Why)
			v.print.Lock()
			defer v.print.Unlock()
			fmt.Fprintln(v.lines, report.Line(r, style))
		}
	}
	return cfg
}

func (v *verification) logf(format string, args ...any) {
	if v.flags.verbose {
		v.tell(format, args...)
	}
}

// tell writes a line that is no result.
func (v *verification) tell(format string, args ...any) {
	v.print.Lock()
	defer v.print.Unlock()
	fmt.Fprintf(v.log, format+"\n", args...)
}

// announce says, before anything is done, what will be done where.
func (v *verification) announce(prefix string) string {
	where := v.target.String()
	if !v.backend.OneProcess {
		where = strings.Join(strings.Fields(v.row.Server.Product+" "+v.row.Server.Version), " ") + " at " + where
	}
	text := fmt.Sprintf("%s: %s; creates and deletes locks that begin with %q, and touches nothing else", v.backend.Name, where, prefix)
	if v.backend.Stays != "" {
		text += "; " + v.backend.Stays
	}
	return text
}

// keep puts the results into the row.
func (v *verification) keep(ctx context.Context, results []conformance.Result, checks []conformance.Check) {
	switch all := len(conformance.Checks()); {
	case ctx.Err() != nil:
		results = inOrder(v.results)
		v.row.Partial = fmt.Sprintf("interrupted after %d of %d checks", len(results), len(checks))
	case len(checks) < all:
		v.row.Partial = fmt.Sprintf("only %d of %d checks were run", len(checks), all)
	}
	v.row.Checks = report.Checks(results, v.target.Redact)
}

func (v *verification) summary(b report.Backend) string {
	counts := fmt.Sprintf("%s: %d passed, %d failed, %d waived, %d unproven, %d absent", b.Name,
		b.Count(conformance.Passed), b.Count(conformance.Failed), b.Count(conformance.Waived),
		b.Count(conformance.Unproven), b.Count(conformance.Absent))
	return fmt.Sprintf("%s\nfit for: %s", counts, b.Verdict())
}
