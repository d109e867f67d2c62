package servers

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
)

// TB is what [For] needs of a test. *testing.T and *testing.B have it.
type TB interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// For starts servers for a test and stops them at its end. Where there is no server the test is
// skipped, unless LOCKTEST_REQUIRE (a comma-separated list of products) names the product: then it
// fails. It also fails if there is a server and it does not start.
//
// Logf of the options is the test's if it is nil.
func For(t TB, p Product, o Options) *Cluster {
	t.Helper()
	if o.Logf == nil {
		o.Logf = t.Logf
	}
	c, err := Start(t.Context(), p, o)
	if err == nil {
		t.Cleanup(c.Stop)
		return c
	}
	var missing *MissingError
	if errors.As(err, &missing) && !Required(p) {
		t.Skipf("%v", err)
	} else {
		t.Fatalf("%v", err)
	}
	return nil
}

// Required tells whether LOCKTEST_REQUIRE names the product, so that a test may not be skipped for
// want of it.
func Required(p Product) bool {
	names := strings.FieldsFunc(os.Getenv("LOCKTEST_REQUIRE"), func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(names, string(p))
}
