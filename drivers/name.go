package drivers

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxName is the length of the longest name, in bytes.
const MaxName = 1024

// CheckName returns a *ConfigError unless name has 1 to MaxName bytes. Any
// bytes will do; the verdict is the same for every driver.
func CheckName(name string) error {
	switch {
	case name == "":
		return &ConfigError{Key: "name", Problem: "is empty", Fix: "give the lock a name of 1 to 1024 bytes"}
	case len(name) > MaxName:
		return &ConfigError{Key: "name", Value: name, Problem: fmt.Sprintf("has %d bytes", len(name)), Fix: "use at most 1024"}
	}
	return nil
}

// MaxTTL is the longest time to live that any driver is asked for.
const MaxTTL = 365 * 24 * time.Hour

// CheckTTL returns a *ConfigError unless ttl is within min and max; a driver
// calls it with what its service can keep.
func CheckTTL(ttl, min, max time.Duration) error {
	switch {
	case ttl <= 0:
		return &ConfigError{Key: "lock_ttl", Value: ttl.String(), Problem: "is not positive", Fix: "write it like 15s"}
	case ttl < min:
		return &ConfigError{Key: "lock_ttl", Value: ttl.String(), Problem: "is too short", Fix: "use at least " + min.String()}
	case ttl > max:
		return &ConfigError{Key: "lock_ttl", Value: ttl.String(), Problem: "is too long", Fix: "use at most " + max.String()}
	}
	return nil
}

// EscapeName maps a name to one path element that every service can store:
// letters, digits, most punctuation and most non-ASCII text stay as they are,
// all else becomes %XX. Distinct names stay distinct. The result holds none of
// / { } % (other than in %XX), no space, no control character, is valid UTF-8,
// and is never "." or "..". It is up to three times as long as the name.
//
// The ranges are fixed: two processes must map a name alike whatever Go
// version they were built with.
func EscapeName(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	if strings.IndexFunc(name, changes) < 0 {
		return name // most names
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		if keeps(r, size) {
			b.WriteString(name[i : i+size])
		} else {
			for _, c := range []byte(name[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		i += size
	}
	return b.String()
}

// changes is the opposite of keeps, and says yes in doubt.
func changes(r rune) bool { return r == utf8.RuneError || !keeps(r, utf8.RuneLen(r)) }

// keeps reports whether a rune stands for itself. ZooKeeper refuses the code
// points that are left out above ASCII; braces are Redis hash tags.
func keeps(r rune, size int) bool {
	switch {
	case r == utf8.RuneError && size == 1:
		return false
	case r <= ' ', r == '%', r == '/', r == '{', r == '}':
		return false
	case r < 0x7f:
		return true
	default:
		return r >= 0xa1 && r < 0xd800 || r >= 0xf900 && r < 0xfff0
	}
}

// UnescapeName is the inverse of EscapeName. It returns false for what
// EscapeName cannot have made.
func UnescapeName(escaped string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		if escaped[i] != '%' {
			b.WriteByte(escaped[i])
			continue
		}
		if i+3 > len(escaped) {
			return "", false
		}
		c, err := hex.DecodeString(escaped[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.Write(c)
		i += 2
	}
	name := b.String()
	return name, CheckName(name) == nil && EscapeName(name) == escaped
}
