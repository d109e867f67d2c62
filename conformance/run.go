package conformance

import (
	"fmt"
	"testing"
)

// Run checks a driver within a test: a subtest for each check, which fails with
// the rule's sentence. Waived, unproven and absent checks are logged and
// skipped; the last line counts all. Config.Logf defaults to t.Logf.
func Run(t *testing.T, c Config) {
	t.Helper()
	if c.Logf == nil {
		c.Logf = t.Logf
	}
	results := Verify(t.Context(), c)
	for _, res := range results {
		t.Run(res.ID, func(t *testing.T) { report(t, res) })
	}
	t.Logf("%s: %s", c.withDefaults().Name, Summary(results))
}

func report(t *testing.T, res Result) {
	switch res.Status {
	case Passed:
	case Failed:
		t.Error(res.Why)
	default:
		t.Skipf("%s: %s", res.Status, res.Why)
	}
}

// Summary counts results, such as "31 passed, 0 failed, 1 waived, 2 unproven, 4 absent".
func Summary(results []Result) string {
	n := map[Status]int{}
	for _, res := range results {
		n[res.Status]++
	}
	return fmt.Sprintf("%d passed, %d failed, %d waived, %d unproven, %d absent", n[Passed], n[Failed], n[Waived], n[Unproven], n[Absent])
}
