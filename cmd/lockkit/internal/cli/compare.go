package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/internal/backends"
)

type compareFlags struct {
	quick   bool
	list    bool
	verbose bool
	only    []string
	urls    []string
	json    string
}

const compareLong = `compare starts every server that it finds on this machine, runs the conformance
suite and a speed measurement on each backend, and prints one table to
decide from. Servers that are missing are rows that say how to get them.

A server that --url names is used instead of one that is started. It is asked
for locks with random names, which are deleted again, and never stopped: what
must outlive a restart is then unproven. What it keeps of every name stays; see
lockkit verify --help. lock_ttl and the other settings of package lock in its
URL play no part.

Environment: LOCKTEST_REDIS_ADDR, LOCKTEST_ETCD_ADDR, LOCKTEST_ZOOKEEPER_ADDR and
LOCKTEST_POSTGRES_ADDR name running servers to be used for the whole product;
NO_COLOR switches colours off.`

const compareExample = `  lockkit compare                                    # all backends, some minutes
  lockkit compare --quick                            # all backends, under 40 s
  lockkit compare --only redis,etcd --json report.json
  lockkit compare --url redis=redis://:secret@10.0.0.5:6379 --only redis,redlock
  lockkit compare --list                             # what would run, and on what`

func newCompare() *cobra.Command {
	var f compareFlags
	c := &cobra.Command{
		Use:     "compare",
		Short:   "Check and measure all backends and print one table",
		Long:    compareLong,
		Example: compareExample,
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return compare(c, f) },
	}
	c.Flags().BoolVar(&f.quick, "quick", false, "one server of etcd and of zookeeper, and few measurements")
	c.Flags().StringSliceVar(&f.only, "only", nil, "the backends to compare: "+strings.Join(backends.Names(), ", "))
	c.Flags().StringArrayVar(&f.urls, "url", nil, "`NAME=URL`: a running server for a backend (may be repeated)")
	c.Flags().StringVar(&f.json, "json", "", "write the report as JSON to `FILE`; - writes it to the output in place of the table")
	c.Flags().BoolVar(&f.list, "list", false, "tell what would run and where each server comes from, and start nothing")
	c.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "show what the servers and the suite log")
	return c
}

func compare(c *cobra.Command, f compareFlags) error {
	jobs, err := f.jobs()
	if err != nil {
		return err
	}
	if f.list && f.json != "" && f.json != "-" {
		return usage("--list writes its JSON to the output: use --json -")
	}
	if f.list {
		return list(c.OutOrStdout(), jobs, f)
	}
	out, err := openOutput(c.OutOrStdout(), f.json)
	if err != nil {
		return err
	}
	p := newProgress(c.ErrOrStderr())
	told := onInterrupt(c.Context(), func() { p.say("%s", "interrupted: stopping the servers…") })
	r, err := (&comparison{flags: f, jobs: jobs, progress: p}).run(c.Context())
	told()
	p.end()
	if err != nil {
		return err
	}
	return out.finish(r)
}

// jobs are the backends that were asked for, each with its URL if one was given.
func (f compareFlags) jobs() ([]*job, error) {
	chosen, err := f.chosen()
	if err != nil {
		return nil, err
	}
	urls, err := f.given()
	if err != nil {
		return nil, err
	}
	var jobs []*job
	for _, b := range backends.All() {
		if !slices.Contains(chosen, b.Name) {
			if urls[b.Name] != "" {
				return nil, usage("--url names %s, which --only leaves out", b.Name)
			}
			continue
		}
		j := &job{backend: b}
		if raw := urls[b.Name]; raw != "" {
			if j.target, err = backends.At(b, raw); err != nil {
				return nil, usage("--url %s: %w", b.Name, err)
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func (f compareFlags) chosen() ([]string, error) {
	only := split(f.only)
	for _, name := range only {
		if _, err := backends.Find(name); err != nil {
			return nil, usage("--only: %w", err)
		}
	}
	if len(only) == 0 {
		return backends.Names(), nil
	}
	return only, nil
}

// given reads --url. A part without a name may hold a password and is not
// shown.
func (f compareFlags) given() (map[string]string, error) {
	urls := map[string]string{}
	for _, one := range f.urls {
		name, raw, ok := strings.Cut(one, "=")
		if !ok || strings.Contains(name, ":") {
			return nil, usage("--url: write it like redis=redis://127.0.0.1:6379")
		}
		if _, err := backends.Find(name); err != nil {
			return nil, usage("--url: %w", err)
		}
		if urls[name] != "" {
			return nil, usage("--url: %s is given twice", name)
		}
		urls[name] = raw
	}
	return urls, nil
}

// list tells where the servers would come from.
func list(w io.Writer, jobs []*job, f compareFlags) error {
	if f.json != "" {
		return listJSON(w, jobs, f)
	}
	for _, j := range jobs {
		from, mend := j.source()
		lines := report.Wrap(fmt.Sprintf("%-18s %-12s ", j.backend.Name, j.backend.Needs(f.quick)), from, styleOf(w))
		if mend != "" {
			lines += report.Wrap(strings.Repeat(" ", 32), mend, styleOf(w))
		}
		if _, err := io.WriteString(w, lines); err != nil {
			return err
		}
	}
	return nil
}

// A listed is a line of --list --json.
type listed struct {
	Name  string `json:"name"`
	Needs string `json:"needs"`
	From  string `json:"from"`
	Mend  string `json:"mend,omitempty"`
}

func listJSON(w io.Writer, jobs []*job, f compareFlags) error {
	lines := []listed{}
	for _, j := range jobs {
		from, mend := j.source()
		lines = append(lines, listed{j.backend.Name, j.backend.Needs(f.quick), from, mend})
	}
	text, err := json.MarshalIndent(map[string]any{"schema": report.Schema, "would_run": lines}, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(text))
	return err
}

// source describes where a job's servers would come from, and what to do if
// there are none.
func (j *job) source() (from, mend string) {
	switch {
	case j.target != nil:
		return "given: " + j.target.String(), ""
	case j.backend.Product == "":
		return backends.InProcess, ""
	}
	s, err := j.backend.Look()
	var missing *servers.MissingError
	switch {
	case errors.As(err, &missing):
		return "missing: " + missing.Reason, missing.Hint
	case err != nil:
		return "missing: " + err.Error(), ""
	}
	return s.String(), ""
}

// An output is where a report goes.
type output struct {
	stdout io.Writer
	file   string
}

// openOutput makes sure that the file can be written, before a run of minutes.
func openOutput(stdout io.Writer, file string) (*output, error) {
	if file != "" && file != "-" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the user's own file
		if err != nil {
			return nil, usage("--json: %w", err)
		}
		if err := f.Close(); err != nil {
			return nil, usage("--json: %w", err)
		}
	}
	return &output{stdout, file}, nil
}

// stamp says what made a report, and when.
func stamp() report.Made {
	return report.Made{
		Lockkit: readVersion().Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Time: time.Now().UTC().Format(time.RFC3339),
	}
}

// finish writes the report and says by its error how the run ended.
func (o *output) finish(r report.Report) error {
	r.Made = stamp()
	if err := o.write(r); err != nil {
		return err
	}
	switch {
	case r.Interrupted:
		return errInterrupted
	case r.Broken():
		return errBroken
	}
	return nil
}

func (o *output) write(r report.Report) error {
	if o.file == "-" {
		return r.Write(o.stdout)
	}
	if err := r.Text(o.stdout, styleOf(o.stdout)); err != nil {
		return err
	}
	return o.save(r)
}

func (o *output) save(r report.Report) error {
	if o.file == "" {
		return nil
	}
	f, err := os.Create(o.file)
	if err != nil {
		return err
	}
	return errors.Join(r.Write(f), f.Close())
}
