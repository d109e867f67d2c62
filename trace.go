package lock

import (
	"sync"
	"time"
)

// A Trace is told what a backend does. Any func may be nil. They are called from
// several goroutines, possibly at once. Acquired and Waiting hold up the call
// that they tell of; the others hold up nobody: Ended is called from a goroutine
// of its own, in the order in which leases ended.
type Trace struct {
	Acquired  func(AcquiredInfo)
	Waiting   func(WaitingInfo)
	Renewed   func(RenewedInfo)
	Ended     func(EndedInfo)
	Reclaimed func(ReclaimedInfo)
}

// AcquiredInfo tells of a new lease.
type AcquiredInfo struct {
	Name, Owner string
	Token       Token         // zero without one
	Took        time.Duration // since TryAcquire or Acquire was called
}

// WaitingInfo tells of an attempt that an Acquire will repeat.
type WaitingInfo struct {
	Name string
	Err  error         // ErrHeld, ErrNoQuorum or ErrUnavailable
	Next time.Duration // until the next attempt
}

// RenewedInfo tells of a renewal. One that failed is repeated until the lease
// ends.
type RenewedInfo struct {
	Name, Owner string
	Err         error         // nil if it got through
	Took        time.Duration // the exchange with the service
	Left        time.Duration // until the lease ends if no later renewal gets through
}

// EndedInfo tells of the end of a lease.
type EndedInfo struct {
	Name, Owner string
	Err         error // ErrReleased, or an error matching ErrLost
}

// ReclaimedInfo tells how the clean-up after a request with an unknown outcome
// ended.
type ReclaimedInfo struct {
	Name, Owner string
	Tries       int
	Err         error // nil if the service confirmed it; else the name stays taken for its TTL at most
}

func (t *Trace) acquired(i AcquiredInfo) {
	if t != nil && t.Acquired != nil {
		t.Acquired(i)
	}
}

func (t *Trace) waiting(i WaitingInfo) {
	if t != nil && t.Waiting != nil {
		t.Waiting(i)
	}
}

func (t *Trace) renewed(i RenewedInfo) {
	if t != nil && t.Renewed != nil {
		t.Renewed(i)
	}
}

func (t *Trace) reclaimed(i ReclaimedInfo) {
	if t != nil && t.Reclaimed != nil {
		t.Reclaimed(i)
	}
}

// A teller tells a trace of leases that ended, apart from whatever ended them:
// the end of one lease must not wait for what a user does about another.
type teller struct {
	trace *Trace

	mu     sync.Mutex
	untold []EndedInfo
	busy   bool
}

func (t *teller) tell(i EndedInfo) {
	if t.trace == nil || t.trace.Ended == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.untold = append(t.untold, i)
	if !t.busy {
		t.busy = true
		go t.run()
	}
}

func (t *teller) run() {
	for i, more := t.next(); more; i, more = t.next() {
		t.trace.Ended(i)
	}
}

func (t *teller) next() (EndedInfo, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.untold) == 0 {
		t.busy = false
		return EndedInfo{}, false
	}
	first := t.untold[0]
	t.untold = t.untold[1:]
	return first, true
}
