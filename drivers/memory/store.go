package memory

import (
	"maps"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// graveTime is how long a released owner's late request is still refused.
const graveTime = time.Minute

// A Store keeps locks for the drivers made for it.
type Store struct {
	mu     sync.Mutex
	names  map[string]*entry
	graves map[string]time.Time // owners released without a grant, until when
	token  drivers.Token        // the last one given
	faults Faults
}

// NewStore makes an empty store.
func NewStore() *Store {
	return &Store{names: map[string]*entry{}, graves: map[string]time.Time{}}
}

// An entry is a name that is held or waited for.
type entry struct {
	hold   *hold // nil while free
	queue  []*waiter
	expiry *time.Timer // hands over at the hold's end while there is a queue
}

type hold struct {
	owner, note string
	token       drivers.Token
	until       time.Time
}

type waiter struct {
	key     string
	request drivers.Request
	granted chan drivers.Grant // takes one grant without blocking
}

func (s *Store) tryAcquire(key string, r drivers.Request) (drivers.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buried(r.Owner) {
		return drivers.Grant{}, drivers.Lost(drivers.Taken, nil)
	}
	e := s.entry(key)
	if e.hold != nil {
		return drivers.Grant{}, e.held()
	}
	return s.grant(e, r), nil
}

func (s *Store) enqueue(key string, r drivers.Request) (*waiter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buried(r.Owner) {
		return nil, drivers.Lost(drivers.Taken, nil)
	}
	w := &waiter{key: key, request: r, granted: make(chan drivers.Grant, 1)}
	e := s.entry(key)
	if e.hold == nil {
		w.granted <- s.grant(e, r)
		return w, nil
	}
	e.queue = append(e.queue, w)
	s.watchExpiry(key, e)
	return w, nil
}

// leave takes a waiter out of the queue, or ends the grant that it was given
// in the same instant.
func (s *Store) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(w.key)
	for i, other := range e.queue {
		if other == w {
			e.queue = append(e.queue[:i:i], e.queue[i+1:]...)
		}
	}
	if e.hold != nil && e.hold.owner == w.request.Owner {
		s.handOver(w.key, e)
	}
	s.tidy(w.key, e)
}

func (s *Store) renew(key, owner string, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(key)
	defer s.tidy(key, e)
	if e.hold == nil || e.hold.owner != owner {
		return drivers.Lost(drivers.Taken, nil)
	}
	e.hold.until = time.Now().Add(ttl)
	if len(e.queue) > 0 {
		s.watchExpiry(key, e)
	}
	return nil
}

func (s *Store) release(key, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(key)
	defer s.tidy(key, e)
	if e.hold == nil || e.hold.owner != owner {
		s.bury(owner)
		return drivers.Lost(drivers.Taken, nil)
	}
	s.handOver(key, e)
	return nil
}

func (s *Store) inspect(key string) (drivers.Holder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(key)
	defer s.tidy(key, e)
	if e.hold == nil {
		return drivers.Holder{}, drivers.ErrNotHeld
	}
	return e.hold.holder(), nil
}

// entry finds the state of a name, its hold dropped if its time is over.
func (s *Store) entry(key string) *entry {
	e := s.names[key]
	if e == nil {
		e = &entry{}
		s.names[key] = e
	}
	if e.hold != nil && !time.Now().Before(e.hold.until) {
		s.handOver(key, e)
	}
	return e
}

// tidy forgets a name that is free.
func (s *Store) tidy(key string, e *entry) {
	if e.hold == nil && s.names[key] == e {
		delete(s.names, key)
	}
}

// handOver ends the hold and gives the name to the first waiter.
func (s *Store) handOver(key string, e *entry) {
	e.hold = nil
	if e.expiry != nil {
		e.expiry.Stop()
	}
	if len(e.queue) == 0 {
		return
	}
	w := e.queue[0]
	e.queue = e.queue[1:]
	w.granted <- s.grant(e, w.request)
	if len(e.queue) > 0 {
		s.watchExpiry(key, e)
	}
}

func (s *Store) grant(e *entry, r drivers.Request) drivers.Grant {
	s.token++
	now := time.Now()
	e.hold = &hold{owner: r.Owner, note: r.Note, token: s.token, until: now.Add(r.TTL)}
	return drivers.Grant{Name: r.Name, Owner: r.Owner, Token: s.token, TTL: r.TTL, Since: now}
}

// watchExpiry looks at the name again when its hold's time is over.
func (s *Store) watchExpiry(key string, e *entry) {
	if e.expiry != nil {
		e.expiry.Stop()
	}
	e.expiry = time.AfterFunc(time.Until(e.hold.until), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.names[key] == e {
			s.tidy(key, s.entry(key))
		}
	})
}

func (s *Store) bury(owner string) {
	now := time.Now()
	maps.DeleteFunc(s.graves, func(_ string, until time.Time) bool { return until.Before(now) })
	s.graves[owner] = now.Add(graveTime)
}

func (s *Store) buried(owner string) bool {
	until, ok := s.graves[owner]
	return ok && time.Now().Before(until)
}

func (e *entry) held() error {
	h := e.hold.holder()
	return &drivers.HeldError{Holder: h, Remaining: h.Remaining}
}

func (h *hold) holder() drivers.Holder {
	return drivers.Holder{Owner: h.owner, Note: h.note, Token: h.token, Remaining: time.Until(h.until)}
}
