package memory

import (
	"context"
	"maps"

	"github.com/lockkit/lock/drivers"
)

// An Op is a kind of exchange.
type Op string

// The exchanges.
const (
	OpAcquire Op = "acquire"
	OpRenew   Op = "renew"
	OpRelease Op = "release"
)

// A Call is one exchange between a driver and its store.
type Call struct {
	Op          Op
	Name, Owner string
}

// Faults are hooks around every exchange. A hook may block, as a network that
// hangs does; it should then end with ctx. An error from Before is a request
// that never arrived, one from After a reply that was lost: the store has
// changed, the driver does not know.
type Faults struct {
	Before func(ctx context.Context, c Call) error
	After  func(ctx context.Context, c Call) error
}

// SetFaults installs the hooks for the calls that begin from now on.
func (s *Store) SetFaults(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

func (s *Store) hooks() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

// Drop ends the hold of a name behind its holder's back, as an operator's
// delete or an eviction would. Waiters are served.
func (s *Store) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(name)
	s.handOver(name, e)
	s.tidy(name, e)
}

// RestartEmpty forgets every hold, every released owner and the token counter,
// as a server does that kept nothing on disk. Waiters are served.
func (s *Store) RestartEmpty() { s.Restore(&Snapshot{}) }

// A Snapshot is a copy of a store's holds and its token counter.
type Snapshot struct {
	holds map[string]hold
	token drivers.Token
}

// Snapshot copies the holds and the token counter.
func (s *Store) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := &Snapshot{holds: map[string]hold{}, token: s.token}
	for key, e := range s.names {
		if e.hold != nil {
			snap.holds[key] = *e.hold
		}
	}
	return snap
}

// Restore puts an earlier state back, as the promotion of a replica that lags
// does. Waiters of names that are then free are served.
func (s *Store) Restore(snap *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = snap.token
	clear(s.graves)
	for key, e := range maps.Clone(s.names) {
		if _, held := snap.holds[key]; !held {
			s.handOver(key, e)
			s.tidy(key, e)
		}
	}
	for key, h := range snap.holds {
		e := s.entry(key)
		e.hold = &h
		if len(e.queue) > 0 {
			s.watchExpiry(key, e)
		}
	}
}
