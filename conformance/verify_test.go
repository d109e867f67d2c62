package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
)

func only(ids ...string) func(string) bool {
	return func(id string) bool {
		for _, one := range ids {
			if id == one {
				return true
			}
		}
		return false
	}
}

func verify(t *testing.T, f flaw, change func(*conformance.Config)) conformance.Result {
	t.Helper()
	c := toyConfig(newService(f))
	change(&c)
	results := conformance.Verify(t.Context(), c)
	if len(results) != 1 {
		t.Fatalf("%d results: %v", len(results), results)
	}
	return results[0]
}

func TestAWaivedCheckThatFailsIsWaived(t *testing.T) {
	res := verify(t, dropsNote, func(c *conformance.Config) {
		c.Only, c.Waive = only("basic/inspect"), map[string]string{"basic/inspect": "no room for notes"}
	})
	if res.Status != conformance.Waived || res.Why != "no room for notes" {
		t.Error(res)
	}
}

func TestAWaivedCheckThatPassesFails(t *testing.T) {
	res := verify(t, "", func(c *conformance.Config) {
		c.Only, c.Waive = only("basic/inspect"), map[string]string{"basic/inspect": "no room for notes"}
	})
	if res.Status != conformance.Failed || !strings.Contains(res.Why, "is waived but passes") {
		t.Error(res)
	}
}

func TestAWaiverOfNoCheckFails(t *testing.T) {
	res := verify(t, "", func(c *conformance.Config) {
		c.Only, c.Waive = only(), map[string]string{"basic/inspekt": "a typo"}
	})
	if res.Status != conformance.Failed || res.ID != "basic/inspekt" {
		t.Error(res)
	}
}

func TestWithoutARestartDurabilityIsUnproven(t *testing.T) {
	res := verify(t, "", func(c *conformance.Config) { c.Only, c.Restart = only("durable/tokens"), nil })
	if res.Status != conformance.Unproven {
		t.Error(res)
	}
}

// Nothing was looked at, so nothing was seen of what the waiver speaks of.
func TestAWaivedCheckThatIsUnprovenStaysUnproven(t *testing.T) {
	res := verify(t, "", func(c *conformance.Config) {
		c.Only, c.Restart = only("durable/tokens"), nil
		c.Waive = map[string]string{"durable/tokens": "kept in memory"}
	})
	if res.Status != conformance.Unproven || res.Why == "kept in memory" {
		t.Error(res)
	}
}

func TestAWaivedCheckThatIsAbsentStaysAbsent(t *testing.T) {
	res := verify(t, secretTokens, func(c *conformance.Config) {
		c.Only, c.Waive = only("durable/tokens"), map[string]string{"durable/tokens": "kept in memory"}
	})
	if res.Status != conformance.Absent {
		t.Error(res)
	}
}

func TestAServiceThatCannotBeOpenedFailsEveryCheck(t *testing.T) {
	c := conformance.Config{Open: func(context.Context) (drivers.Driver, error) { return nil, errors.New("no route") }}
	results := conformance.Verify(t.Context(), c)
	if len(results) != len(conformance.Checks()) {
		t.Errorf("%d results", len(results))
	}
	for _, res := range results {
		if res.Status != conformance.Failed || !strings.Contains(res.Why, "no route") {
			t.Error(res)
		}
	}
}

// A mute never answers, whatever its context says.
type mute struct{ drivers.Driver }

func (m mute) TryAcquire(_ context.Context, r drivers.Request) (drivers.Grant, error) {
	if strings.Contains(r.Name, "basic-held") {
		select {}
	}
	return m.Driver.TryAcquire(context.Background(), r)
}

func TestADriverThatHangsFailsTheCheckAndNotTheRun(t *testing.T) {
	res := verify(t, "", func(c *conformance.Config) {
		open := c.Open
		c.Open = func(ctx context.Context) (drivers.Driver, error) { d, err := open(ctx); return mute{d}, err }
		c.Only, c.Timeout = only("basic/held"), 100*time.Millisecond
	})
	if res.Status != conformance.Failed || !strings.Contains(res.Why, "hangs") {
		t.Error(res)
	}
}

func TestResultsComeInTheOrderOfTheCatalogue(t *testing.T) {
	c := toyConfig(newService(""))
	var told int
	c.Progress = func(conformance.Result) { told++ }
	c.Only = func(id string) bool { return strings.HasPrefix(id, "basic/re") }
	results := conformance.Verify(t.Context(), c)
	i := 0
	for _, check := range conformance.Checks() {
		if c.Only(check.ID) {
			if results[i].ID != check.ID || results[i].Promise != check.Promise {
				t.Errorf("result %d is %s and not %s", i, results[i].ID, check.ID)
			}
			i++
		}
	}
	if told != i || len(results) != i {
		t.Errorf("%d results, %d told, %d chosen", len(results), told, i)
	}
}

func TestTheCatalogueIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, check := range conformance.Checks() {
		promise, _, _ := strings.Cut(check.ID, "/")
		if check.Promise != promise || check.Rule == "" || strings.HasSuffix(check.Rule, ".") || seen[check.ID] {
			t.Errorf("%+v", check)
		}
		seen[check.ID] = true
	}
}

func TestAResultIsWrittenWithShortNames(t *testing.T) {
	text, err := json.Marshal(conformance.Result{ID: "basic/held", Promise: "basic", Status: conformance.Passed})
	if err != nil || string(text) != `{"id":"basic/held","promise":"basic","status":"passed"}` {
		t.Errorf("%s %v", text, err)
	}
}
