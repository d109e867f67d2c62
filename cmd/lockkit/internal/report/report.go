// Package report is what a comparison found, as data: its JSON form, and the
// judgement of what each backend is fit for. What it looks like to people is in
// table.go and markdown.go.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
)

// Schema is the version of the JSON form. Fields may be added to it.
const Schema = 1

// A Report is what one run found.
type Report struct {
	Schema      int  `json:"schema"`
	Quick       bool `json:"quick,omitempty"`       // fewer servers and fewer measurements
	Interrupted bool `json:"interrupted,omitempty"` // it ended before all was done
	Made
	Backends []Backend `json:"backends"`
}

// Made says when and with what a report was made: figures are only to be
// compared with those of the like.
type Made struct {
	Lockkit string `json:"lockkit,omitempty"` // the version
	Go      string `json:"go,omitempty"`
	OS      string `json:"os,omitempty"`
	Arch    string `json:"arch,omitempty"`
	Time    string `json:"time,omitempty"` // of the end of the run, as in RFC 3339
}

// A Backend is one row.
type Backend struct {
	Name     string            `json:"name"`
	Server   Server            `json:"server"`
	Promises []string          `json:"promises"` // those that the driver claims
	Checks   []Check           `json:"checks"`   // those that were run
	Speed    conformance.Speed `json:"speed"`    // zeros: not measured
	Fit      Fit               `json:"fit"`
	Why      string            `json:"why"` // the reason for Fit

	Mend        string            `json:"mend,omitempty"`         // how to get a server that is missing
	Error       string            `json:"error,omitempty"`        // why a server that is there could not be used
	Partial     string            `json:"partial,omitempty"`      // why not all checks were run
	NotPromised map[string]string `json:"not_promised,omitempty"` // the driver's reasons
	Warnings    []string          `json:"warnings,omitempty"`
	OneProcess  bool              `json:"one_process,omitempty"` // other processes have locks of their own
}

// A Server is where the locks were kept.
type Server struct {
	Product string `json:"product"`
	Version string `json:"version"`
	Source  Source `json:"source"`
	Members int    `json:"members,omitempty"`
}

// A Source says where a server came from.
type Source string

// The sources.
const (
	Started Source = "started" // by us, for this run
	Given   Source = "given"   // it was running
	Missing Source = "missing"
)

// A Check is the outcome of one check.
type Check struct {
	ID      string             `json:"id"`
	Promise string             `json:"promise"`
	Status  conformance.Status `json:"status"`
	Why     string             `json:"why"`
}

// New makes the report of the rows and judges each.
func New(rows []Backend) Report {
	for i := range rows {
		b := &rows[i]
		b.Promises, b.Checks = orEmpty(b.Promises), orEmpty(b.Checks)
		b.Fit, b.Why = judge(*b)
	}
	return Report{Schema: Schema, Backends: orEmpty(rows)}
}

// orEmpty has JSON write [] where nothing is.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Checks are the results of the suite as a report has them.
func Checks(results []conformance.Result, redact func(string) string) []Check {
	var checks []Check
	for _, r := range results {
		checks = append(checks, Check{r.ID, r.Promise, r.Status, redact(r.Why)})
	}
	return checks
}

// Count is how many checks ended so.
func (b Backend) Count(s conformance.Status) int {
	n := 0
	for _, c := range b.Checks {
		if c.Status == s {
			n++
		}
	}
	return n
}

// Broken tells whether a check failed, or a server that is there could not be
// used.
func (r Report) Broken() bool {
	for _, b := range r.Backends {
		if b.Error != "" || b.Count(conformance.Failed) > 0 {
			return true
		}
	}
	return false
}

// A State says how a promise stands.
type State int

// The states.
const (
	Absent   State = iota // it is not made
	Proved                // it is made, and all its checks passed
	Failed                // one of its checks failed
	Unproven              // it is made, and not all of its checks could look
)

// Promise is the state of "basic", "fencing" and so on.
func (b Backend) Promise(name string) State {
	ran, passed := 0, 0
	for _, c := range b.Checks {
		if c.Promise != name {
			continue
		}
		switch c.Status {
		case conformance.Failed:
			return Failed
		case conformance.Passed:
			passed++
		case conformance.Absent:
			continue // an optional part that the driver does not have
		}
		ran++
	}
	switch {
	case !b.claims(name):
		return Absent
	case passed == 0 || passed < ran || b.Partial != "":
		return Unproven
	}
	return Proved
}

func (b Backend) claims(promise string) bool {
	if promise == basic {
		return true
	}
	for _, p := range b.Promises {
		if p == promise {
			return true
		}
	}
	return false
}

const basic = "basic"

// PromiseNames are the promises that a driver may make, in order.
func PromiseNames() []string {
	var names []string
	for _, g := range drivers.Guarantees {
		names = append(names, g.String())
	}
	return names
}

// Write writes the JSON form.
func (r Report) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// Read reads the JSON form.
func Read(from io.Reader) (Report, error) {
	var r Report
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		return Report{}, fmt.Errorf("not a report: %w", err)
	}
	if r.Schema != Schema {
		return Report{}, fmt.Errorf("a report of schema %d, where %d is known", r.Schema, Schema)
	}
	return r, nil
}
