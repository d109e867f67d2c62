package conformance

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A Violation is a proof that a rule was broken.
type Violation struct {
	Rule string // "overlap", "token repeated" or "token order"
	Name string // the lock
	Text string // what happened, with times
	A, B string // the two leases
}

func (v Violation) String() string { return fmt.Sprintf("%s on %q: %s", v.Rule, v.Name, v.Text) }

// Overlaps judges mutual exclusion as the holders could know it: two leases of
// one name never both say that they are valid. It reports only what is proved:
// a lease that was valid before and after a span was valid throughout, because
// a lease never becomes valid again; so another lease's assertion, asked and
// answered within that span, overlaps with it. Slowness of whoever records can
// hide an overlap but not feign one.
//
// At most one violation is reported for each lease that came into another's
// span. The work is that of sorting.
func Overlaps(h History) []Violation {
	var found []Violation
	for _, name := range byName(h) {
		found = append(found, sweepOverlaps(spans(name))...)
	}
	return found
}

// A span is a lease of which it is known that it was valid from and to.
type span struct {
	name, lease string
	from, to    time.Duration
	first       Event // its first valid assertion
	asserts     []Event
	token       drivers.Token
	invoke, ok  time.Duration // of its acquire; negative if not seen
}

// sweepOverlaps goes through the assertions in order and remembers the two
// spans that reach farthest: two, because one may be the lease's own.
func sweepOverlaps(all []*span) []Violation {
	var asserts []Event
	var open []*span
	for _, s := range all {
		asserts = append(asserts, s.asserts...)
		if s.from <= s.to {
			open = append(open, s)
		}
	}
	slices.SortFunc(asserts, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	slices.SortFunc(open, func(a, b *span) int { return cmp.Compare(a.from, b.from) })
	var far farthest
	var found []Violation
	seen := map[string]bool{}
	for _, e := range asserts {
		for len(open) > 0 && open[0].from <= e.At {
			far.add(open[0])
			open = open[1:]
		}
		if s := far.otherThan(e.Lease); s != nil && e.Until <= s.to && !seen[e.Lease] {
			seen[e.Lease] = true
			found = append(found, overlap(s, e))
		}
	}
	return found
}

type farthest [2]*span

func (f *farthest) add(s *span) {
	switch {
	case f[0] == nil || s.to > f[0].to:
		f[0], f[1] = s, f[0]
	case f[1] == nil || s.to > f[1].to:
		f[1] = s
	}
}

func (f *farthest) otherThan(lease string) *span {
	if f[0] != nil && f[0].lease == lease {
		return f[1]
	}
	return f[0]
}

func overlap(s *span, e Event) Violation {
	return Violation{Rule: "overlap", Name: s.name, A: s.lease, B: e.Lease, Text: fmt.Sprintf(
		"lease %s was valid at %v and at %v, and lease %s was valid between %v and %v", s.lease, s.from, s.to, e.Lease, e.At, e.Until)}
}

// TokenOrder judges fencing tokens: no two grants of a name have one token,
// and an acquire that was invoked after another had returned has the higher
// one. Acquires without a token or with an unknown outcome are left out. It
// holds whatever else is broken: late, paused and lost holders included.
func TokenOrder(h History) []Violation {
	var found []Violation
	for _, name := range byName(h) {
		granted := tokened(name)
		found = append(found, repeated(granted)...)
		found = append(found, sweepOrder(granted, func(s *span) time.Duration { return s.ok }, func(s *span) time.Duration { return s.invoke })...)
	}
	return found
}

// HolderOrder judges fencing tokens more sharply than TokenOrder, also among
// acquires that ran at once: a lease that was first seen valid after another
// was seen valid was granted after it, because a name is held by one at a
// time. That makes it a judge for runs in which no holder may believe in a
// lost lease: without faults, or within those that a driver survives.
func HolderOrder(h History) []Violation {
	var found []Violation
	for _, name := range byName(h) {
		seen := slices.DeleteFunc(tokened(name), func(s *span) bool { return len(s.asserts) == 0 })
		found = append(found, sweepOrder(seen, func(s *span) time.Duration { return s.first.Until }, func(s *span) time.Duration { return s.first.At })...)
	}
	return found
}

func tokened(h History) []*span {
	return slices.DeleteFunc(spans(h), func(s *span) bool { return s.token == 0 || s.ok < 0 })
}

func repeated(granted []*span) []Violation {
	var found []Violation
	by := map[drivers.Token]*span{}
	for _, s := range granted {
		if other := by[s.token]; other != nil {
			found = append(found, Violation{Rule: "token repeated", Name: s.name, A: other.lease, B: s.lease,
				Text: fmt.Sprintf("leases %s and %s both have token %d", other.lease, s.lease, s.token)})
		}
		by[s.token] = s
	}
	return found
}

// sweepOrder goes through the grants by the time after which each was given,
// and keeps the highest token that is known to have been given before.
func sweepOrder(granted []*span, known, after func(*span) time.Duration) []Violation {
	by := func(at func(*span) time.Duration) []*span {
		return slices.SortedFunc(slices.Values(granted), func(a, b *span) int { return cmp.Compare(at(a), at(b)) })
	}
	var found []Violation
	var highest *span
	before := by(known)
	for _, s := range by(after) {
		for len(before) > 0 && known(before[0]) < after(s) {
			if highest == nil || before[0].token > highest.token {
				highest = before[0]
			}
			before = before[1:]
		}
		if highest != nil && s.token < highest.token {
			found = append(found, Violation{Rule: "token order", Name: s.name, A: highest.lease, B: s.lease, Text: fmt.Sprintf(
				"lease %s, granted by %v, has token %d, and lease %s, granted later than %v, has token %d",
				highest.lease, known(highest), highest.token, s.lease, after(s), s.token)})
		}
	}
	return found
}

// byName divides a history, in the order of names' first events.
func byName(h History) []History {
	var parts []History
	index := map[string]int{}
	for _, e := range h {
		i, ok := index[e.Name]
		if !ok {
			i = len(parts)
			index[e.Name] = i
			parts = append(parts, nil)
		}
		parts[i] = append(parts[i], e)
	}
	return parts
}

// spans gathers the leases of one name.
func spans(h History) []*span {
	var all []*span
	by := map[string]*span{}
	for _, e := range h {
		if e.Lease == "" {
			continue
		}
		s := by[e.Lease]
		if s == nil {
			s = &span{name: e.Name, lease: e.Lease, from: math.MaxInt64, to: -1, invoke: -1, ok: -1}
			by[e.Lease] = s
			all = append(all, s)
		}
		s.add(e)
	}
	return all
}

func (s *span) add(e Event) {
	switch {
	case e.Phase == Valid:
		s.asserts = append(s.asserts, e)
		if e.Until < s.from {
			s.from, s.first = e.Until, e
		}
		s.to = max(s.to, e.At)
	case e.Op == OpAcquire && e.Phase == Invoke:
		s.invoke = e.At
	case e.Op == OpAcquire && e.Phase == OK:
		s.ok, s.token = e.At, e.Token
	}
}
