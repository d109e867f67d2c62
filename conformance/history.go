package conformance

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A Phase is what an event says about an operation.
type Phase string

// The phases.
const (
	Invoke  Phase = "invoke"  // written before the request is sent
	OK      Phase = "ok"      // written after the reply came: it took effect
	Fail    Phase = "fail"    // it did not take effect
	Unknown Phase = "unknown" // nobody can tell; judges leave it out
	Valid   Phase = "valid"   // an assertion: the lease said it was valid
	Invalid Phase = "invalid" // an assertion: the lease said it was over
	Fault   Phase = "fault"   // something was done to the service or to a client
)

// An Op is the operation that an event belongs to.
type Op string

// The operations.
const (
	OpAcquire Op = "acquire"
	OpRenew   Op = "renew"
	OpRelease Op = "release"
	OpAssert  Op = "assert" // the holder asks its own lease; nothing is sent
	OpFault   Op = "fault"
)

// An Event is a line of a history. Times are on one monotonic clock for the
// whole history.
type Event struct {
	At     time.Duration `json:"at"`              // of an assertion: before the lease was asked
	Until  time.Duration `json:"until,omitempty"` // of an assertion: after it answered
	Phase  Phase         `json:"phase"`
	Op     Op            `json:"op"`
	Name   string        `json:"name,omitempty"`   // the lock
	Client string        `json:"client,omitempty"` // who acts
	Lease  string        `json:"lease,omitempty"`  // one attempt and the lease it won; never used twice
	Token  drivers.Token `json:"token,omitempty"`  // of a granted acquire
	Note   string        `json:"note,omitempty"`   // an error, a fault, a declared deadline
}

// A History is what was seen, in any order: histories of several processes may
// be joined if their clocks are one.
type History []Event

// WriteTo writes a line of JSON for each event.
func (h History) WriteTo(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	buffered := bufio.NewWriter(counted)
	lines := json.NewEncoder(buffered)
	for _, e := range h {
		if err := lines.Encode(e); err != nil {
			return counted.n, err
		}
	}
	err := buffered.Flush()
	return counted.n, err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// A Recorder writes a history; its methods may be called from many goroutines.
type Recorder struct {
	clock  func() time.Duration
	mu     sync.Mutex
	events History
}

// NewRecorder makes an empty recorder. The clock must be monotonic; processes
// whose histories are to be joined need one that they share, such as Linux's
// CLOCK_MONOTONIC. Nil is the time since the call.
func NewRecorder(clock func() time.Duration) *Recorder {
	if clock == nil {
		start := time.Now()
		clock = func() time.Duration { return time.Since(start) }
	}
	return &Recorder{clock: clock}
}

// Record adds an event with the present time. Write Invoke before sending, OK
// after the receipt.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The clock is read under the mutex, so events stand in their order. An
	// Invoke is never too late for that: the caller sends after the return.
	e.At = r.clock()
	r.events = append(r.events, e)
}

// Assert asks a lease whether it is valid and records the answer between two
// stamps: with one, a stop between asking and writing would look like a lie.
func (r *Recorder) Assert(name, client, lease string, valid func() bool) bool {
	e := Event{Op: OpAssert, Name: name, Client: client, Lease: lease, Phase: Invalid, At: r.clock()}
	ok := valid()
	e.Until = r.clock()
	if ok {
		e.Phase = Valid
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	return ok
}

// History copies what was recorded so far.
func (r *Recorder) History() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(History(nil), r.events...)
}
