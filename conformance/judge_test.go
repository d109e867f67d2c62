package conformance_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
)

// valid is an assertion of a lease that it was valid, asked at one time and
// answered at another.
func valid(name, lease string, from, to time.Duration) conformance.Event {
	return conformance.Event{Op: conformance.OpAssert, Phase: conformance.Valid, Name: name, Lease: lease, At: from, Until: to}
}

// granted is an acquire that was invoked at one time and returned at another.
func granted(name, lease string, token drivers.Token, invoke, ok time.Duration) conformance.History {
	e := conformance.Event{Op: conformance.OpAcquire, Phase: conformance.Invoke, Name: name, Lease: lease, At: invoke}
	done := e
	done.Phase, done.At, done.Token = conformance.OK, ok, token
	return conformance.History{e, done}
}

func join(parts ...conformance.History) conformance.History {
	var all conformance.History
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func TestOverlapsReportsWhatIsProvedAndNothingElse(t *testing.T) {
	for _, c := range []struct {
		what string
		want int
		h    conformance.History
	}{
		{"nothing happened", 0, nil},
		{"one after the other", 0, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 3, 4), valid("x", "B", 5, 6), valid("x", "B", 7, 8)}},
		{"B within A's span", 1, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 9, 10), valid("x", "B", 5, 6)}},
		{"B within A's span, written first", 1, conformance.History{valid("x", "B", 5, 6), valid("x", "A", 9, 10), valid("x", "A", 1, 2)}},
		{"B's span around A's", 1, conformance.History{valid("x", "B", 1, 2), valid("x", "A", 4, 5), valid("x", "A", 6, 7), valid("x", "B", 9, 10)}},
		{"spans that cross", 2, conformance.History{valid("x", "A", 1, 2), valid("x", "B", 3, 4), valid("x", "A", 5, 6), valid("x", "B", 7, 8)}},
		{"B asked within and answered after", 0, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 9, 10), valid("x", "B", 8, 20)}},
		{"B asked before and answered within", 0, conformance.History{valid("x", "A", 1, 5), valid("x", "A", 9, 10), valid("x", "B", 4, 6)}},
		{"B around A's only assertion: A may have ended in it", 0, conformance.History{valid("x", "A", 5, 6), valid("x", "B", 1, 10)}},
		{"A's assertions overlap: they prove no span", 0, conformance.History{valid("x", "A", 1, 8), valid("x", "A", 2, 9), valid("x", "B", 5, 6)}},
		{"another name", 0, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 9, 10), valid("y", "B", 5, 6)}},
		{"an invalid lease within", 0, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 9, 10), {Op: conformance.OpAssert, Phase: conformance.Invalid, Name: "x", Lease: "B", At: 5, Until: 6}}},
		{"its own span reaches farther than the other's", 2, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 9, 10), valid("x", "B", 3, 4), valid("x", "B", 20, 21)}},
		{"a long span behind short ones", 1, conformance.History{valid("x", "A", 1, 2), valid("x", "A", 90, 91), valid("x", "B", 95, 96), valid("x", "B", 97, 98), valid("x", "C", 50, 51)}},
	} {
		if got := conformance.Overlaps(c.h); len(got) != c.want {
			t.Errorf("%s: %d violations and not %d: %v", c.what, len(got), c.want, got)
		}
	}
}

func TestTokenOrderKnowsTheOrderOfAcquiresThatDidNotOverlap(t *testing.T) {
	for _, c := range []struct {
		what string
		want int
		h    conformance.History
	}{
		{"rising", 0, join(granted("x", "A", 1, 1, 2), granted("x", "B", 2, 3, 4))},
		{"falling", 1, join(granted("x", "A", 2, 1, 2), granted("x", "B", 1, 3, 4))},
		{"falling, written the other way round", 1, join(granted("x", "B", 1, 3, 4), granted("x", "A", 2, 1, 2))},
		{"repeated", 1, join(granted("x", "A", 2, 1, 2), granted("x", "B", 2, 3, 4))},
		{"repeated at once", 1, join(granted("x", "A", 2, 1, 4), granted("x", "B", 2, 2, 3))},
		{"at once in any order", 0, join(granted("x", "A", 2, 1, 4), granted("x", "B", 1, 2, 5))},
		{"falling after a while", 1, join(granted("x", "A", 9, 1, 2), granted("x", "B", 10, 3, 4), granted("x", "C", 8, 1, 20), granted("x", "D", 7, 30, 31))},
		{"another name", 0, join(granted("x", "A", 2, 1, 2), granted("y", "B", 1, 3, 4))},
		{"no token", 0, join(granted("x", "A", 2, 1, 2), granted("x", "B", 0, 3, 4))},
		{"unknown outcome", 0, join(granted("x", "A", 2, 1, 2), granted("x", "B", 1, 3, 4)[:1])},
	} {
		if got := conformance.TokenOrder(c.h); len(got) != c.want {
			t.Errorf("%s: %d violations and not %d: %v", c.what, len(got), c.want, got)
		}
	}
}

func TestHolderOrderKnowsTheOrderOfHoldersToo(t *testing.T) {
	atOnce := join(granted("x", "A", 2, 1, 4), granted("x", "B", 1, 2, 9))
	if got := conformance.HolderOrder(join(atOnce, conformance.History{valid("x", "A", 5, 6), valid("x", "B", 10, 11)})); len(got) != 1 {
		t.Errorf("B held after A with a lower token: %v", got)
	}
	if got := conformance.HolderOrder(join(atOnce, conformance.History{valid("x", "A", 5, 12), valid("x", "B", 10, 11)})); len(got) != 0 {
		t.Errorf("nobody can tell who held first: %v", got)
	}
	if got := conformance.HolderOrder(atOnce); len(got) != 0 {
		t.Errorf("nobody was seen to hold: %v", got)
	}
}

// The work must stay that of sorting: a night's history has millions of lines.
func TestJudgesAreFastOnLongHistories(t *testing.T) {
	var h conformance.History
	for i := range 50_000 {
		at, lease := time.Duration(10*i), fmt.Sprint(i)
		h = append(h, granted("x", lease, drivers.Token(i+1), at, at+1)...)
		h = append(h, valid("x", lease, at+2, at+3), valid("x", lease, at+7, at+8))
	}
	if v := conformance.Overlaps(h); len(v) != 0 {
		t.Error(v[0])
	}
	if v := append(conformance.TokenOrder(h), conformance.HolderOrder(h)...); len(v) != 0 {
		t.Error(v[0])
	}
}

func TestARecorderStampsAssertionsBeforeAndAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := conformance.NewRecorder(nil)
		time.Sleep(time.Second)
		r.Record(conformance.Event{Op: conformance.OpAcquire, Phase: conformance.Invoke, Name: "x", Lease: "A"})
		r.Assert("x", "c", "A", func() bool { time.Sleep(time.Second); return true })
		h := r.History()
		if len(h) != 2 || h[0].At != time.Second || h[1].At != time.Second || h[1].Until != 2*time.Second || h[1].Phase != conformance.Valid {
			t.Errorf("%+v", h)
		}
	})
}

func TestAHistoryIsWrittenAsLinesOfJSON(t *testing.T) {
	h := granted("x", "A", 7, 1, 2)
	var b bytes.Buffer
	n, err := h.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatal(n, b.Len(), err)
	}
	var back conformance.History
	for lines := json.NewDecoder(&b); lines.More(); {
		var e conformance.Event
		if err := lines.Decode(&e); err != nil {
			t.Fatal(err)
		}
		back = append(back, e)
	}
	if len(back) != 2 || back[1] != h[1] {
		t.Errorf("%+v", back)
	}
}
