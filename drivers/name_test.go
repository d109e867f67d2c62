package drivers_test

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkit/lock/drivers"
)

func TestNamesOfOneTo1024BytesAreGood(t *testing.T) {
	for _, good := range []string{"a", "\x00", "\xff", strings.Repeat("x", 1024), "ä/b c"} {
		if err := drivers.CheckName(good); err != nil {
			t.Errorf("%.20q: %v", good, err)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", 1025)} {
		if drivers.CheckName(bad) == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
}

func TestEscapedNamesAreReadable(t *testing.T) {
	for name, want := range map[string]string{
		"nightly-report_2.v1:x@y": "nightly-report_2.v1:x@y",
		"Zürich":                  "Zürich",
		"日本":                      "日本",
		"a/b c%d":                 "a%2Fb%20c%25d",
		"{tag}":                   "%7Btag%7D",
		".":                       "%2E",
		"..":                      "%2E%2E",
		"...":                     "...",
		"\x00\x7f\xff":            "%00%7F%FF",
		"🔒":                       "%F0%9F%94%92",
	} {
		if got := drivers.EscapeName(name); got != want {
			t.Errorf("%q became %q, want %q", name, got, want)
		}
	}
}

func TestWhatWasNotEscapedIsNotUnescaped(t *testing.T) {
	for _, s := range []string{"", "a/b", "%", "%2", "%zz", "%41", "%2f", "a b", "."} {
		if name, ok := drivers.UnescapeName(s); ok {
			t.Errorf("%q was read as %q", s, name)
		}
	}
}

func FuzzEscapeName(f *testing.F) {
	for _, seed := range []string{"a", ".", "a%2Fb", "{x}", "\x80", "é", "e\u0301", "\ufffd"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if drivers.CheckName(name) != nil {
			return
		}
		escaped := drivers.EscapeName(name)
		if back, ok := drivers.UnescapeName(escaped); !ok || back != name {
			t.Errorf("%q became %q, which reads %q", name, escaped, back)
		}
		bad := func(r rune) bool { return r == '/' || r == '{' || r == '}' || r == ' ' || unicode.IsControl(r) }
		if !utf8.ValidString(escaped) || strings.ContainsFunc(escaped, bad) || escaped == "." || escaped == ".." || len(escaped) > 3*len(name) {
			t.Errorf("%q became %q", name, escaped)
		}
	})
}

func TestTTLsAreBounded(t *testing.T) {
	for ttl, good := range map[time.Duration]bool{
		-1: false, 0: false, 1: false, time.Second: true, time.Minute: true, time.Minute + 1: false,
	} {
		if err := drivers.CheckTTL(ttl, time.Second, time.Minute); (err == nil) != good {
			t.Errorf("%v: %v", ttl, err)
		}
	}
}
