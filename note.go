package lock

import (
	"crypto/rand"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const maxNote = 256

// processID begins every owner of this process, so that "you" is told apart
// from a namesake with the same host name and pid.
var processID = rand.Text()[:10]

// newOwner makes an owner that was never used before.
func newOwner() string { return processID + rand.Text()[:20] }

var hostName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "unknown"
	}
	return strings.Map(notSpace, host)
})

func notSpace(r rune) rune {
	if r <= ' ' {
		return -1
	}
	return r
}

func checkNote(note string) error {
	switch {
	case len(note) > maxNote:
		return &ConfigError{Key: "lock_note", Value: note, Problem: "is too long", Fix: "use at most 256 bytes"}
	case !utf8.ValidString(note) || strings.ContainsFunc(note, unicode.IsControl):
		return &ConfigError{Key: "lock_note", Problem: "has control characters or is not UTF-8", Fix: "use plain text"}
	}
	return nil
}

// writeNote is what drivers store: host, pid, time and the user's note.
func writeNote(note string, asked time.Time) string {
	return hostName() + " " + strconv.Itoa(os.Getpid()) + " " + strconv.FormatInt(asked.UnixMilli(), 10) + " " + note
}

// readHolder fills in what writeNote stored, and the token base. A note that
// someone else wrote stays as it is.
func (b *Backend) readHolder(h Holder) Holder {
	h.You = strings.HasPrefix(h.Owner, processID)
	if h.Token > 0 && h.Token <= math.MaxInt64-b.opts.TokenBase {
		h.Token += b.opts.TokenBase
	}
	fields := strings.SplitN(h.Note, " ", 4)
	if len(fields) != 4 {
		return h
	}
	pid, err1 := strconv.Atoi(fields[1])
	ms, err2 := strconv.ParseInt(fields[2], 10, 64)
	if err1 != nil || err2 != nil {
		return h
	}
	h.Host, h.PID, h.Since, h.Note = fields[0], pid, time.UnixMilli(ms), fields[3]
	return h
}
