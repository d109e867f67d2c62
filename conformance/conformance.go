// Package conformance breaks lock drivers, or shows that it could not.
//
// It checks a [drivers.Driver] against the contract of package drivers on the
// real service, promise by promise. A promise that the driver makes must hold;
// one that it does not make must be visibly absent; what could not be caused
// is reported as unproven and never as passed. A third party tests its driver
// with a dozen lines:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Config{
//			Name: "mydriver",
//			TTL:  time.Second,
//			Open: func(ctx context.Context) (drivers.Driver, error) { return mydriver.Open(ctx, addr) },
//		})
//	}
//
// [Verify] does the same without package testing. [Checks] lists what is
// checked.
//
// The package looks through the driver's own methods only: it stops no server
// and cuts no connection, except by [Config].Restart and [Config].Silence.
package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A Config says what to check. Open is required.
type Config struct {
	// Name stands for the driver in messages, such as "redis 7.0".
	Name string

	// Open makes a new client of the one service, independent of all clients
	// made before: with connections, sessions and memory of its own. The suite
	// closes what it opened.
	Open func(ctx context.Context) (drivers.Driver, error)

	// TTL is the shortest time to live that the service keeps well; checks
	// that wait for an expiry use it. The default is 2 s. Where a check finds
	// the machine too slow for it, it tries again with twice as much.
	TTL time.Duration

	// Slack is how much later than its time to live the service may end a
	// grant: etcd looks every 500 ms, ZooKeeper every tick. The default is 1 s.
	Slack time.Duration

	// Prefix begins every name of this run, so that runs on a shared service
	// don't meet. The default is random. At most 64 bytes.
	Prefix string

	// Waive maps the id of a check to the reason why the driver fails it. The
	// check still runs, and a waived check that passes is a failure. One that
	// is unproven or absent stays so.
	Waive map[string]string

	// Only chooses checks by id. Nil means all.
	Only func(id string) bool

	// Timeout bounds each check. The default is 30 s and 20 TTLs.
	Timeout time.Duration

	// Parallel is how many checks run at once. The default is 8.
	Parallel int

	// Restart stops the service and starts it again with its data, and
	// returns when it serves. Without it what must outlive a restart is
	// unproven. It is called while no other check runs.
	Restart func(ctx context.Context) error

	// Silence cuts a client off, so that the service hears no more of it,
	// until undo is called. A driver needs it whose grants live as long as a
	// session that the client library keeps alive by itself; for all others,
	// not to renew is silence enough.
	Silence func(d drivers.Driver) (undo func(), err error)

	// Progress is told each result as its check ends, one at a time.
	Progress func(Result)

	// Logf is told what does not show in the results, such as a check that
	// had to be tried again.
	Logf func(format string, args ...any)
}

// A Status is the outcome of a check.
type Status string

// The outcomes.
const (
	// Passed: the check looked, and the rule held.
	Passed Status = "passed"
	// Failed: the rule was seen broken, or the driver's errors, panics or
	// silence kept the check from looking; or a check passed that was waived.
	Failed Status = "failed"
	// Waived: the check failed, as Config.Waive said it would.
	Waived Status = "waived"
	// Unproven: what the check needs could not be caused.
	Unproven Status = "unproven"
	// Absent: the driver does not make the promise, or has not the optional
	// interface, and does not look as if it had.
	Absent Status = "absent"
)

// A Result is the outcome of one check.
type Result struct {
	ID      string        `json:"id"`
	Promise string        `json:"promise"` // "basic", "fencing", "durable", "fair" or "prompt"
	Status  Status        `json:"status"`
	Why     string        `json:"why,omitempty"`     // the rule and what was seen; the reason of a waiver
	Took    time.Duration `json:"took_ns,omitempty"` // with waiting for its turn left out
}

// A Check is an entry of the catalogue.
type Check struct {
	ID      string // such as "basic/held"; stable, for Config.Waive
	Promise string // as in Result
	Rule    string // what must hold, in one sentence

	run   func(context.Context, *env) error
	alone bool // disturbs other checks
	slow  bool // takes several TTLs
}

// Checks is the catalogue in the order in which results are given.
func Checks() []Check { return append([]Check(nil), catalogue...) }

// Verify runs the checks and returns their results in the order of the
// catalogue. It returns when all have ended or hit their Timeout; a driver's
// call that hangs for ever is left behind.
func Verify(ctx context.Context, c Config) []Result {
	c = c.withDefaults()
	results := strayWaivers(c)
	chosen := c.chosen()
	r, err := open(ctx, c)
	if err != nil {
		return append(allFailed(c, chosen, err), results...)
	}
	defer r.close()
	return append(r.all(ctx, chosen), results...)
}

func (c Config) withDefaults() Config {
	set(&c.Name, "driver")
	set(&c.TTL, 2*time.Second)
	set(&c.Slack, time.Second)
	set(&c.Prefix, "cf-"+rand.Text()[:10]+"-")
	set(&c.Timeout, 30*time.Second+20*c.TTL)
	set(&c.Parallel, 8)
	if c.Only == nil {
		c.Only = func(string) bool { return true }
	}
	if c.Progress == nil {
		c.Progress = func(Result) {}
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	return c
}

func set[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}

func (c Config) chosen() []Check {
	var some []Check
	for _, check := range catalogue {
		if c.Only(check.ID) {
			some = append(some, check)
		}
	}
	return some
}

// strayWaivers fails waivers of checks that don't exist: a misspelt one would
// waive nothing, a renamed one would live for ever.
func strayWaivers(c Config) []Result {
	known := map[string]bool{}
	for _, check := range catalogue {
		known[check.ID] = true
	}
	var stray []Result
	for id := range c.Waive {
		if !known[id] {
			promise, _, _ := strings.Cut(id, "/")
			stray = append(stray, Result{ID: id, Promise: promise, Status: Failed, Why: "is waived but no such check exists"})
		}
	}
	return stray
}

func allFailed(c Config, checks []Check, err error) []Result {
	var results []Result
	for _, check := range checks {
		res := Result{ID: check.ID, Promise: check.Promise, Status: Failed, Why: fmt.Sprintf("%s could not be opened: %v", c.Name, err)}
		c.Progress(res)
		results = append(results, res)
	}
	return results
}
