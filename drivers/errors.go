package drivers

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors to be matched with errors.Is.
var (
	// ErrHeld: someone else holds the name. The error is a *HeldError.
	ErrHeld = errors.New("lock is held")
	// ErrNotHeld: nobody holds the name (from Inspect).
	ErrNotHeld = errors.New("lock is not held")
	// ErrNoQuorum: too few nodes granted the name, and no other owner was
	// seen on a quorum of them: a split vote, or nodes that don't answer.
	ErrNoQuorum = errors.New("no quorum")
	// ErrLost: the lease ended before it was released. The error is a *LostError.
	ErrLost = errors.New("lease lost")
	// ErrReleased: the lease was released.
	ErrReleased = errors.New("lease released")
	// ErrStale: a resource refused a token because it has seen a higher one.
	ErrStale = errors.New("stale fencing token")
	// ErrUnavailable: the service could not be reached or could not serve,
	// which may pass.
	ErrUnavailable = errors.New("lock service unavailable")
	// ErrNotSent: there was no connection, so the request certainly never left
	// and nothing has to be cleaned up. It goes with ErrUnavailable.
	ErrNotSent = errors.New("request was not sent")
	// ErrClosed: the driver or backend was closed.
	ErrClosed = errors.New("lock backend is closed")
)

// A HeldError says that someone else holds the name. It matches ErrHeld.
type HeldError struct {
	Holder    Holder
	Remaining time.Duration // until the holder's grant ends if it is not renewed; zero if unknown
}

func (e *HeldError) Error() string {
	h := e.Holder
	h.Remaining = cmp.Or(h.Remaining, e.Remaining)
	if h == (Holder{}) {
		return "lock is held"
	}
	return "lock is held by " + h.String()
}

// Is makes the error match ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// A Reason says why a lease was lost.
type Reason string

// The reasons.
const (
	Expired      Reason = "expired"             // its time ran out
	Gone         Reason = "gone"                // the service has no such grant: flushed, evicted, deleted, or expired there
	Taken        Reason = "taken"               // the service says it is not ours (any more)
	SessionEnded Reason = "session ended"       // the session or lease it hung on ended
	Unreachable  Reason = "service unreachable" // no renewal got through in time
)

// A LostError says why a lease ended. It matches ErrLost.
type LostError struct {
	Reason Reason
	Err    error // what led to it, such as the last failed renewal; may be nil
}

func (e *LostError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("lease lost: %s", e.Reason)
	}
	return fmt.Sprintf("lease lost: %s: %v", e.Reason, e.Err)
}

// Is makes the error match ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

func (e *LostError) Unwrap() error { return e.Err }

// Lost makes a *LostError.
func Lost(reason Reason, err error) error { return &LostError{Reason: reason, Err: err} }

// Unavailable marks err as trouble in reaching the service: the result matches
// ErrUnavailable and err. Unavailable(nil) is nil.
func Unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	return &unavailable{err}
}

// NotSent marks err as a request that never left: the result matches
// ErrNotSent, ErrUnavailable and err.
func NotSent(err error) error { return &notSent{unavailable{err}} }

type notSent struct{ unavailable }

func (n *notSent) Is(target error) bool { return target == ErrNotSent || target == ErrUnavailable }

type unavailable struct{ err error }

func (u *unavailable) Error() string        { return "lock service unavailable: " + u.err.Error() }
func (u *unavailable) Is(target error) bool { return target == ErrUnavailable }
func (u *unavailable) Unwrap() error        { return u.err }

// An UnmetError says that a backend does not promise what was asked for.
type UnmetError struct {
	Scheme string
	Want   Guarantee
	Have   Guarantee
	Why    []string // a line for each missing promise
}

func (e *UnmetError) Error() string {
	missing := e.Want &^ e.Have
	s := fmt.Sprintf("%s does not promise %s", e.Scheme, missing)
	if len(e.Why) > 0 {
		s += ": " + strings.Join(e.Why, "; ")
	}
	return s
}

// A ConfigError says what is wrong with a setting, a name or a TTL, and how to
// mend it. Nothing has been sent when it is returned, unless Problem says that
// the server refused. It never holds a password.
type ConfigError struct {
	Key     string // what to change: "lock_ttl", "scheme", "host", "name", …
	Value   string // as given, if it may be shown
	Problem string // "is not a duration"
	Fix     string // "write it like 15s"
}

func (e *ConfigError) Error() string {
	s := e.Key
	if e.Value != "" {
		s += fmt.Sprintf(" %q", shorten(e.Value))
	}
	s += " " + e.Problem
	if e.Fix != "" {
		s += ": " + e.Fix
	}
	return s
}

func shorten(s string) string {
	if len(s) > 80 {
		return s[:77] + "..."
	}
	return s
}

// An Error wraps what went wrong with the operation and the lock's name, in the
// manner of os.PathError.
type Error struct {
	Op   string // "acquire", "release", "open", …
	Name string // the lock, or the redacted URL for "open"
	Err  error
}

func (e *Error) Error() string {
	if e.Name == "" {
		return "lock: " + e.Op + ": " + e.Err.Error()
	}
	return fmt.Sprintf("lock: %s %q: %v", e.Op, shorten(e.Name), e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
