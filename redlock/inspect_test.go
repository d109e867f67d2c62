package redlock_test

import (
	"strings"
	"testing"

	"github.com/lockkit/lock/drivers"
)

func TestCheckSaysWhyNothingIsPromised(t *testing.T) {
	c := start(t, "")
	c.kill(2)
	report, err := c.driver.(drivers.Checker).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Product != "redis" || report.Version == "" || len(report.Servers) != 5 {
		t.Errorf("got %+v", report)
	}
	for i, p := range report.Promises {
		if p.Guarantee != drivers.Guarantees[i] || p.Made || p.Why == "" {
			t.Errorf("got %+v", p)
		}
	}
	if len(report.Promises) != len(drivers.Guarantees) || c.driver.Guarantees() != 0 {
		t.Errorf("promises %v, reports %+v", c.driver.Guarantees(), report.Promises)
	}
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], c.nodes[2].Addr()) {
		t.Errorf("warnings %q", report.Warnings)
	}
}
