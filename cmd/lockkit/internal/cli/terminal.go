package cli

import (
	"cmp"
	"io"
	"os"
	"strings"

	"github.com/lockkit/lock/cmd/lockkit/internal/report"
)

// isTerminal tells whether a person looks at w. /dev/null passes for one, which
// does no harm.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// styleOf is what w can show.
func styleOf(w io.Writer) report.Style {
	return report.Style{Unicode: isUTF8(), Colour: isTerminal(w) && os.Getenv("NO_COLOR") == ""}
}

// isUTF8 reads the locale as the C library does.
func isUTF8() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	locale = strings.ToLower(locale)
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}
