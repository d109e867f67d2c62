package report

import (
	"fmt"
	"strings"

	"github.com/lockkit/lock/conformance"
)

// The marks between which a generated table stands in a document.
const (
	Begin = "<!-- report:begin -->"
	End   = "<!-- report:end -->"
)

// Markdown is the table for a document.
func (r Report) Markdown() string {
	var b strings.Builder
	b.WriteString("| Backend | Server | Fencing | Durable | Fair | Prompt | Checks passed | Acquire + release, µs (p50/p99) | Hand-off, ms (p50/max) | Fit for |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Backends {
		b.WriteString("| " + strings.Join(markdownRow(row), " | ") + " |\n")
	}
	return b.String()
}

func markdownRow(b Backend) []string {
	cells := []string{b.Name, strings.TrimSuffix(server(b), "*")}
	for _, name := range PromiseNames() {
		cells = append(cells, mark(b, name))
	}
	return append(cells, markdownCount(b),
		pair(b.Speed.PairP50, b.Speed.PairP99, micros),
		pair(b.Speed.HandoffP50, b.Speed.HandoffMax, millis),
		b.shown())
}

// markdownCount says how many of those that could be looked at passed.
func markdownCount(b Backend) string {
	passed := b.Count(conformance.Passed)
	ran := len(b.Checks) - b.Count(conformance.Absent)
	if ran == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d", passed, ran)
	for _, s := range []conformance.Status{conformance.Waived, conformance.Unproven} {
		if n := b.Count(s); n > 0 {
			text += fmt.Sprintf(", %d %s", n, s)
		}
	}
	return text
}

// Insert puts a table between the marks of a document.
func Insert(document, table string) (string, error) {
	before, rest, found := strings.Cut(document, Begin)
	_, after, closed := strings.Cut(rest, End)
	if !found || !closed {
		return "", fmt.Errorf("it does not have the lines %s and %s", Begin, End)
	}
	return before + Begin + "\n" + strings.TrimRight(table, "\n") + "\n" + End + after, nil
}
