package report

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockkit/lock/conformance"
)

// Width is what the table and the text below it fit into.
const Width = 120

// A Style says what the terminal can show.
type Style struct {
	Unicode bool
	Colour  bool
}

// A column of the table. The group stands above the first of its columns.
type column struct {
	group, head string
	right       bool
	gap         int // before it
}

var columns = []column{
	{head: "backend"},
	{head: "server", gap: 2},
	{group: "promises", head: "fencing", gap: 2},
	{head: "durable", gap: 1},
	{head: "fair", gap: 1},
	{head: "prompt", gap: 1},
	{group: "checks", head: "pass", right: true, gap: 2},
	{head: "fail", right: true, gap: 1},
	{head: "wvd", right: true, gap: 1},
	{head: "unp", right: true, gap: 1},
	{group: "pair, µs", head: "p50/p99", right: true, gap: 2},
	{group: "handoff, ms", head: "p50/max", right: true, gap: 2},
	{head: "fit", gap: 2},
}

// A cell is a text and the colour it has where there are colours.
type cell struct {
	text   string
	colour string
}

const (
	red   = "31"
	green = "32"
	bold  = "1"
)

// Text writes the report for people: the table, the reasons, the legend.
func (r Report) Text(w io.Writer, s Style) error {
	p := &page{Style: s}
	p.table(r.Backends)
	p.reasons(r.Backends)
	p.list("Failed checks", r.Backends, conformance.Failed)
	p.list("Waived: can't be passed by this backend, and why that does no harm", r.Backends, conformance.Waived)
	p.list("Unproven: could not be looked at", r.Backends, conformance.Unproven)
	p.warnings(r.Backends)
	if r.finished() {
		p.legend(r)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// finished tells whether there is a row to be read. Who interrupts a run before
// that needs no legend.
func (r Report) finished() bool {
	for _, b := range r.Backends {
		if len(b.Checks) > 0 && b.Partial == "" {
			return true
		}
	}
	return !r.Interrupted
}

// A page is a text that grows.
type page struct {
	Style
	strings.Builder
}

// plain replaces what only Unicode can show.
var plain = strings.NewReplacer("✓", "yes", "✗", "NO", "–", "-", "×", "x", "µs", "us", "…", "...")

func (p *page) symbol(text string) string {
	if p.Unicode {
		return text
	}
	return plain.Replace(text)
}

func (p *page) paint(text, colour string) string {
	if !p.Colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (p *page) table(rows []Backend) {
	var lines [][]cell
	for _, b := range rows {
		lines = append(lines, p.row(b))
	}
	widths := p.widths(lines)
	p.groups(widths)
	var heads []cell
	for _, c := range columns {
		heads = append(heads, cell{c.head, bold})
	}
	p.line(heads, widths)
	for _, line := range lines {
		p.line(line, widths)
	}
}

func (p *page) widths(lines [][]cell) []int {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = length(c.head)
		for _, line := range lines {
			widths[i] = max(widths[i], length(line[i].text))
		}
	}
	for i, c := range columns {
		if alone(i) {
			widths[i] = max(widths[i], length(p.symbol(c.group)))
		}
	}
	return widths
}

// groups writes the line above the heads. A group stands where the first of
// its columns begins, or above the one column that it has.
func (p *page) groups(widths []int) {
	line, at := "", 0
	for i, c := range columns {
		at += c.gap
		if group := p.symbol(c.group); group != "" {
			start := at
			if alone(i) {
				start += widths[i] - length(group)
			}
			line += strings.Repeat(" ", start-length(line)) + group
		}
		at += widths[i]
	}
	p.WriteString(p.paint(line, bold) + "\n")
}

// alone tells whether a column is the only one of its group.
func alone(i int) bool {
	return columns[i].group != "" && (i+1 == len(columns) || columns[i+1].gap != 1)
}

func (p *page) line(cells []cell, widths []int) {
	for i, c := range columns {
		pad := strings.Repeat(" ", widths[i]-length(cells[i].text))
		text := p.paint(cells[i].text, cells[i].colour)
		switch {
		case c.right:
			text = pad + text
		case i+1 < len(columns):
			text += pad
		}
		p.WriteString(strings.Repeat(" ", c.gap) + text)
	}
	p.WriteByte('\n')
}

func length(s string) int { return utf8.RuneCountInString(s) }

func (p *page) row(b Backend) []cell {
	line := []cell{{text: b.Name}, {text: p.symbol(server(b))}}
	for _, name := range PromiseNames() {
		line = append(line, p.state(b, name))
	}
	for _, s := range []conformance.Status{conformance.Passed, conformance.Failed, conformance.Waived, conformance.Unproven} {
		line = append(line, p.count(b, s))
	}
	line = append(line,
		cell{text: p.symbol(pair(b.Speed.PairP50, b.Speed.PairP99, micros))},
		cell{text: p.symbol(pair(b.Speed.HandoffP50, b.Speed.HandoffMax, millis))})
	return append(line, cell{p.symbol(b.shown()), fitColour(b)})
}

func fitColour(b Backend) string {
	switch {
	case b.Unknown():
		return ""
	case b.Fit == Correctness:
		return green
	case b.Fit == None:
		return red
	}
	return ""
}

// server leaves out the product if the backend's name says it.
func server(b Backend) string {
	s := b.Server
	switch {
	case s.Source == Missing:
		return "missing"
	case b.Error != "":
		return "not usable"
	case s.Version == "" && len(b.Checks) == 0:
		return ""
	}
	text := s.Version
	if !strings.HasPrefix(b.Name, s.Product) {
		text = strings.TrimSpace(s.Product + " " + s.Version)
	}
	if s.Members > 1 {
		text += fmt.Sprintf(" ×%d", s.Members)
	}
	if s.Source == Given {
		text += "*"
	}
	return text
}

// mark is how a promise stands; nothing where nothing was checked.
func mark(b Backend, promise string) string {
	if len(b.Checks) == 0 {
		return ""
	}
	return map[State]string{Proved: "✓", Failed: "✗", Unproven: "?", Absent: "–"}[b.Promise(promise)]
}

func (p *page) state(b Backend, promise string) cell {
	m := mark(b, promise)
	return cell{p.symbol(m), map[string]string{"✓": green, "✗": red}[m]}
}

func (p *page) count(b Backend, s conformance.Status) cell {
	n := b.Count(s)
	switch {
	case len(b.Checks) == 0:
		return cell{}
	case n > 0 && s == conformance.Failed:
		return cell{fmt.Sprint(n), red}
	}
	return cell{text: fmt.Sprint(n)}
}

// pair writes two measured times, or nothing if there are none.
func pair(a, b time.Duration, write func(time.Duration) string) string {
	if a == 0 && b == 0 {
		return ""
	}
	return write(a) + "/" + write(b)
}

func micros(d time.Duration) string { return significant(float64(d) / float64(time.Microsecond)) }

func millis(d time.Duration) string { return significant(float64(d) / float64(time.Millisecond)) }

// significant writes two digits behind the point at most, none where the number
// has two before it, and thousands where it has five.
func significant(f float64) string {
	switch {
	case f >= 9999.5:
		return fmt.Sprintf("%.0fk", f/1000)
	case f >= 9.95:
		return fmt.Sprintf("%.0f", f)
	case f >= 0.995:
		return fmt.Sprintf("%.1f", f)
	default:
		return fmt.Sprintf("%.2f", f)
	}
}

func (p *page) heading(text string) { p.WriteString("\n" + p.paint(text, bold) + "\n") }

const noneDurableNote = "No server backend promises durable in this release: its settings are not read yet. " +
	"Where data depends on the lock ask for fencing, and see docs/choosing.md."

func (p *page) reasons(rows []Backend) {
	p.heading("Fit for")
	brief := noneDurable(rows)
	var names, fits int
	for _, b := range rows {
		names, fits = max(names, length(b.Name)), max(fits, length(b.shown()))
	}
	for _, b := range rows {
		head := fmt.Sprintf("  %-*s  %-*s  ", names, b.Name, fits, b.shown())
		p.wrap(head, reason(b, brief))
		if b.Mend != "" {
			p.wrap(strings.Repeat(" ", length(head)), b.Mend)
		}
	}
	if brief {
		p.wrap("  ", noneDurableNote)
	}
}

// reason leaves out what is said once for several backends.
func reason(b Backend, brief bool) string {
	switch {
	case b.Unknown():
		return b.Verdict()
	case brief && b.unread():
		return "no promise of " + durable
	}
	return b.Why
}

// list writes the checks that ended so, each with its reason.
func (p *page) list(title string, rows []Backend, s conformance.Status) {
	headed := false
	for _, b := range rows {
		for _, c := range b.Checks {
			if c.Status != s {
				continue
			}
			if !headed {
				p.heading(title)
				headed = true
			}
			p.wrap(fmt.Sprintf("  %s  %s  ", b.Name, c.ID), c.Why)
		}
	}
}

func (p *page) warnings(rows []Backend) {
	headed := false
	for _, b := range rows {
		for _, text := range b.Warnings {
			if !headed {
				p.heading("Warnings")
				headed = true
			}
			p.wrap("  "+b.Name+"  ", text)
		}
	}
}

// Wrap is a text behind a head, in lines that are not too long.
func Wrap(head, text string, s Style) string {
	p := &page{Style: s}
	p.wrap(head, text)
	return p.String()
}

// wrap writes a text behind a head, its further lines below its first or, if
// the head is long, a little to the right.
func (p *page) wrap(head, text string) {
	indent := length(head)
	if indent > Width/3 {
		indent = 6
	}
	line := p.symbol(head)
	fresh := true
	for word := range strings.FieldsSeq(p.symbol(text)) {
		if !fresh && length(line)+1+length(word) > Width {
			p.WriteString(strings.TrimRight(line, " ") + "\n")
			line, fresh = strings.Repeat(" ", indent), true
		}
		if !fresh {
			line += " "
		}
		line += word
		fresh = false
	}
	p.WriteString(strings.TrimRight(line, " ") + "\n")
}

var legend = [][2]string{
	{"promises", "✓ proved by all its checks, ✗ a check failed, ? promised but not proved, – not promised:"},
	{"fencing", "each grant of a lock has a higher token than the last, so that a store can refuse late writers"},
	{"durable", "no token is forgotten or given twice after a crash or a restart"},
	{"fair", "waiters are served in the order in which they came"},
	{"prompt", "waiters are woken; elsewhere they look again and again"},
	{"checks", "passed, failed, waived (can't be passed by this backend; harmless), unproven (could not be looked at)"},
	{"pair", "a free lock is acquired and released"},
	{"handoff", "until another client's waiter has the released lock; one that polls sleeps its pause out (lock_poll)"},
	{"efficiency", "will do where a second run at once only wastes work: a mail is sent twice"},
	{"correctness", "needed where a second run would spoil data: fencing and durable, and a store that refuses old tokens"},
}

func (p *page) legend(r Report) {
	p.heading("How to read this")
	for _, l := range legend {
		p.wrap(fmt.Sprintf("  %-11s  ", l[0]), l[1])
	}
	p.footnotes(r)
}

func (p *page) footnotes(r Report) {
	given := false
	for _, b := range r.Backends {
		given = given || b.Server.Source == Given
	}
	if given {
		p.wrap("  *            ", "a running server that was given; the others were started for this run")
	}
	if r.Quick {
		p.wrap("  quick        ", "one server of etcd and of zookeeper, and few measurements: leave out --quick for figures to rely on")
	}
	if r.Interrupted {
		p.wrap("  partial      ", "interrupted: what had not ended is not in the table")
	}
}

// Line is a check's outcome as one line.
func Line(r conformance.Result, s Style) string {
	p := &page{Style: s}
	mark, colour := "·", ""
	switch r.Status {
	case conformance.Passed:
		mark, colour = "✓", green
	case conformance.Failed:
		mark, colour = "✗", red
	}
	if !s.Unicode {
		mark = ""
	}
	line := p.paint(fmt.Sprintf("%s %-8s", mark, r.Status), colour) + fmt.Sprintf(" %-38s %6s", r.ID, r.Took.Round(time.Millisecond))
	if r.Why != "" {
		line += "  " + p.symbol(r.Why)
	}
	return strings.TrimSpace(line)
}
