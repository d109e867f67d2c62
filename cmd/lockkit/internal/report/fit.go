package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lockkit/lock/conformance"
)

// Fit is the kind of lock that a backend may serve as.
type Fit string

// The kinds.
const (
	Efficiency  Fit = "efficiency"  // a second run at once only wastes work
	Correctness Fit = "correctness" // a second run at once would spoil data; the store checks tokens
	None        Fit = "none"
)

// judge says what a backend is fit for and why. The first reason counts.
func judge(b Backend) (Fit, string) {
	switch {
	case b.Server.Source == Missing:
		return None, cmp.Or(b.Why, "its server is missing")
	case b.Error != "":
		return None, b.Error
	case b.Promise(basic) == Failed:
		return None, "a lock must not fail " + b.firstFailed(basic)
	case b.Partial != "":
		return None, b.Partial
	case len(b.Checks) == 0:
		return None, "nothing was checked"
	case b.OneProcess:
		return Efficiency, "one process only: every other process has locks of its own"
	}
	// Waivers are the project's own, and given only where no harm is done.
	if id := b.first(basic, conformance.Unproven); id != "" {
		return Efficiency, id + " is unproven"
	}
	for _, need := range []string{"fencing", durable} {
		if why := b.lacks(need); why != "" {
			return Efficiency, why
		}
	}
	return Correctness, "tokens rise and outlive a restart: have the store of the data refuse old ones"
}

// Unknown tells that not enough was run to judge. To tools it is None: they are
// not to take it for more.
func (b Backend) Unknown() bool { return b.Partial != "" && b.Fit == None && b.Why == b.Partial }

// Verdict is Fit and Why as people read them.
func (b Backend) Verdict() string {
	if b.Unknown() {
		return "unknown (not all checks were run): " + b.Why
	}
	return fmt.Sprintf("%s: %s", b.Fit, b.Why)
}

// shown is Fit in a table.
func (b Backend) shown() string {
	if b.Unknown() {
		return "–"
	}
	return string(b.Fit)
}

const durable = "durable"

// unread tells that a backend would be fit for more, had its driver read the
// settings of the server.
func (b Backend) unread() bool {
	why := b.NotPromised[durable]
	return b.Fit == Efficiency && strings.Contains(why, "not read yet") && b.Why == b.lacks(durable)
}

// noneDurable tells whether this is so of several backends, and no server
// backend promises otherwise: then it is said once for all of them.
func noneDurable(rows []Backend) bool {
	n := 0
	for _, b := range rows {
		if b.claims(durable) && !b.OneProcess {
			return false
		}
		if b.unread() {
			n++
		}
	}
	return n > 1
}

// lacks says why a promise does not stand; nothing if it was proved.
func (b Backend) lacks(promise string) string {
	switch b.Promise(promise) {
	case Proved:
		return ""
	case Failed:
		return promise + " failed: " + b.firstFailed(promise)
	case Unproven:
		return promise + " is promised but unproven" + b.firstOpen(promise)
	default:
		return "no promise of " + promise + colon(b.NotPromised[promise])
	}
}

func (b Backend) firstFailed(promise string) string {
	return cmp.Or(b.first(promise, conformance.Failed), promise)
}

func (b Backend) firstOpen(promise string) string {
	for _, status := range []conformance.Status{conformance.Unproven, conformance.Waived} {
		if id := b.first(promise, status); id != "" {
			return fmt.Sprintf(": %s is %s", id, status)
		}
	}
	return ""
}

// first is the id of the first check of a promise that ended so.
func (b Backend) first(promise string, status conformance.Status) string {
	for _, c := range b.Checks {
		if c.Promise == promise && c.Status == status {
			return c.ID
		}
	}
	return ""
}

func colon(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
