package drivers_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/drivers"
)

func TestGuaranteesAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]drivers.Guarantee{
		"none": 0, "efficiency": 0, "": 0,
		"correctness":   drivers.Fencing | drivers.Durable,
		"fencing, fair": drivers.Fencing | drivers.Fair,
		"prompt":        drivers.Prompt,
	} {
		var g drivers.Guarantee
		if err := g.UnmarshalText([]byte(text)); err != nil || g != want {
			t.Errorf("%q is read as %v, %v", text, g, err)
		}
		var again drivers.Guarantee
		if err := again.UnmarshalText([]byte(g.String())); err != nil || again != g {
			t.Errorf("%v is written as %q", g, g.String())
		}
	}
	var g drivers.Guarantee
	if g.UnmarshalText([]byte("fencing,luck")) == nil {
		t.Error("an unknown promise was accepted")
	}
}

func TestErrorsMatch(t *testing.T) {
	cause := errors.New("connection reset")
	for _, c := range []struct{ err, target error }{
		{&drivers.HeldError{}, drivers.ErrHeld},
		{drivers.Lost(drivers.Expired, cause), drivers.ErrLost},
		{drivers.Lost(drivers.Expired, cause), cause},
		{drivers.Unavailable(cause), drivers.ErrUnavailable},
		{drivers.Unavailable(cause), cause},
		{drivers.Unavailable(context.DeadlineExceeded), context.DeadlineExceeded},
		{&drivers.Error{Op: "acquire", Name: "job", Err: cause}, cause},
	} {
		if !errors.Is(fmt.Errorf("wrapped: %w", c.err), c.target) {
			t.Errorf("%v does not match %v", c.err, c.target)
		}
	}
	if drivers.Unavailable(nil) != nil {
		t.Error("no error became one")
	}
}

func TestErrorsTellWhatToDo(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		err   error
		parts []string
	}{
		{&drivers.HeldError{}, []string{"lock is held"}},
		{
			&drivers.HeldError{Holder: drivers.Holder{Host: "web-1", PID: 7, Note: "report", Since: since}, Remaining: 1500 * time.Millisecond},
			[]string{"web-1", "pid 7", "report", "2026-01-02T03:04:05Z", "1.5s left"},
		},
		{
			&drivers.UnmetError{Scheme: "redlock", Want: drivers.Correctness, Why: []string{"a random value orders nothing"}},
			[]string{"redlock does not promise fencing,durable", "a random value orders nothing"},
		},
		{&drivers.ConfigError{Key: "lock_ttl", Value: "x", Problem: "is not a duration", Fix: "write it like 15s"}, []string{`lock_ttl "x" is not a duration: write it like 15s`}},
	} {
		for _, part := range c.parts {
			if !strings.Contains(c.err.Error(), part) {
				t.Errorf("%q does not tell %q", c.err, part)
			}
		}
	}
}

func TestSchemesAreRegisteredOnce(t *testing.T) {
	open := func(context.Context, *drivers.URL) (drivers.Driver, error) { return nil, errors.New("opened") }
	scheme := "contract-test-" + strings.ToLower(rand.Text()) // the registry outlives -count
	drivers.Register(scheme, open)
	if !slices.Contains(drivers.Schemes(), scheme) {
		t.Error("the scheme is not listed")
	}
	u, err := drivers.ParseURL(scheme + "://h")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drivers.Open(t.Context(), u); err == nil || err.Error() != "opened" {
		t.Errorf("got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second registration was accepted")
		}
	}()
	drivers.Register(scheme, open)
}

func TestAnUnknownSchemeTellsTheImport(t *testing.T) {
	u, err := drivers.ParseURL("etcd://h")
	if err != nil {
		t.Fatal(err)
	}
	_, err = drivers.Open(t.Context(), u)
	if err == nil || !strings.Contains(err.Error(), `import _ "github.com/lockkit/lock/etcdlease"`) {
		t.Errorf("got %v", err)
	}
}
