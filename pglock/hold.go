package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A state of a hold.
type state int

const (
	asked   state = iota // the session was asked for the lock
	held                 // and gave it
	leaving              // it is being given back
	gone                 // nothing is left of it
)

// A hold is one advisory lock of this driver from the request to its end. Its
// methods need Advisory.mu, unless they say otherwise.
type hold struct {
	d                 *Advisory
	session           *session
	name, owner, note string
	fenced            bool

	state    state
	unwanted bool // given up or released before the session answered
	tries    int

	answered chan struct{} // closed when the request has its answer:
	err      error         // a refusal or a failure, or
	token    drivers.Token // a grant
	ttl      time.Duration
	since    time.Time
	key      key

	gone chan struct{} // closed when nothing is left
	end  error         // why: nil if it was released
	was  bool          // it was held
}

// A key is what an advisory lock is called in the server.
type key struct{ oid, id int32 }

// readKey reads the key at the end of a row of stmtLock or stmtFenced.
func readKey(row [][]byte) (key, error) {
	oid, err := strconv.ParseInt(string(row[3]), 10, 32)
	if err != nil {
		return key{}, err
	}
	id, err := strconv.ParseInt(string(row[4]), 10, 32)
	return key{int32(oid), int32(id)}, err
}

// args are the parameters of stmtUnlock.
func (k key) args() [][]byte {
	return [][]byte{binary.BigEndian.AppendUint32(nil, uint32(k.oid)), binary.BigEndian.AppendUint32(nil, uint32(k.id))}
}

func (k key) String() string { return fmt.Sprintf("%d/%d", k.oid, k.id) }

// request asks the session for the lock.
func (h *hold) request() {
	o := &op{stmt: stmtLock, args: [][]byte{h.d.key(h.name)}, answer: h.onLock}
	if h.fenced {
		o.stmt = stmtFenced
		o.args = append(o.args, []byte(h.owner), []byte(h.note))
	}
	h.session.submit(o)
}

func (h *hold) onLock(a answerOf) {
	switch {
	case a.ended:
		h.finish(a.err)
	case a.err != nil:
		// The lock may have been taken before the token failed.
		h.sweep(h.d.explain(context.Background(), a.err))
	case a.row == nil:
		h.onNoName()
	case string(a.row[0]) != "advisory":
		h.finish(h.d.wrongMode("advisory", string(a.row[0])))
	case string(a.row[1]) != "t":
		h.finish(&drivers.HeldError{})
	default:
		h.onGranted(a)
	}
}

func (h *hold) onGranted(a answerOf) {
	var err error
	if h.key, err = readKey(a.row); err != nil {
		h.sweep(fmt.Errorf("pglock: the key of %q: %w", h.name, err))
		return
	}
	if h.fenced {
		n, err := strconv.ParseInt(string(a.row[2]), 10, 64)
		if err != nil || n <= 0 {
			h.giveBack(errors.New("pglock: the row of " + strconv.Quote(h.name) + " gave no token"))
			return
		}
		h.token = drivers.Token(n)
	}
	h.state, h.was = held, true
	h.since, h.ttl = a.sent, h.session.silence
	if h.unwanted {
		h.leave()
		return
	}
	close(h.answered)
}

// onNoName gives a new name its row, and asks again.
func (h *hold) onNoName() {
	if h.unwanted {
		h.finish(drivers.Lost(drivers.Taken, nil))
		return
	}
	if h.tries++; h.tries > repeats {
		h.finish(errors.New("pglock: rows vanish from table " + h.d.table))
		return
	}
	h.session.submit(&op{stmt: stmtInsert, args: [][]byte{h.d.key(h.name)}, answer: func(a answerOf) {
		switch {
		case a.ended:
			h.finish(a.err)
		case a.err != nil:
			h.finish(h.d.explain(context.Background(), a.err))
		default:
			h.request()
		}
	}})
}

// leave gives the lock back, now or as soon as it is granted.
func (h *hold) leave() {
	switch h.state {
	case asked:
		h.unwanted = true
	case held:
		h.giveBack(nil)
	}
}

// giveBack unlocks, by the key and without a look at the table. Then the hold
// ends with end.
func (h *hold) giveBack(end error) {
	h.state = leaving
	h.session.submit(&op{stmt: stmtUnlock, args: h.key.args(), answer: func(a answerOf) { h.onGivenBack(a, end) }})
}

// sweep unlocks what the session holds without our knowing it: the key of the
// hold is unknown. Then the hold ends with end.
func (h *hold) sweep(end error) {
	h.state = leaving
	h.session.submit(&op{stmt: stmtSweep, latest: h.session.known, answer: func(a answerOf) { h.onGivenBack(a, end) }})
}

func (h *hold) onGivenBack(a answerOf, end error) {
	switch {
	case a.ended:
		h.finish(drivers.Lost(drivers.SessionEnded, h.session.died))
	case a.err != nil || a.row == nil:
		// Never a lock without an end: if it can't be unlocked the session must go.
		h.session.broken = errors.Join(errors.New("a lock could not be given back"), a.err)
		h.finish(drivers.Lost(drivers.SessionEnded, h.session.broken))
	case h.was && string(a.row[0]) != "t":
		h.finish(drivers.Lost(drivers.Taken, nil))
	default:
		h.finish(end)
	}
}

// known are the parameters of stmtSweep: the locks that are to stay, or have an
// unlock of their own on the way.
func (s *session) known() [][]byte {
	var keys []string
	for h := range s.holds {
		if h.key != (key{}) {
			keys = append(keys, h.key.String())
		}
	}
	return [][]byte{[]byte(strings.Join(keys, ","))}
}

// finish forgets the hold. A request that was not answered is answered with
// end; an end of nil is a release.
func (h *hold) finish(end error) {
	if h.state == gone {
		return
	}
	h.state, h.end = gone, end
	delete(h.d.holds, h.name)
	delete(h.d.owners, h.owner)
	h.session.forget(h)
	select {
	case <-h.answered:
	default:
		h.err = end
		if end == nil {
			h.err = drivers.Lost(drivers.Taken, errors.New("released before the request was answered"))
		}
		close(h.answered)
	}
	close(h.gone)
}

// lose ends the hold with its session. It tells whether a grant was lost.
func (h *hold) lose() bool {
	granted := h.state == held
	h.finish(drivers.Lost(drivers.SessionEnded, h.session.died))
	return granted
}

// grant is the answer to the request. It needs no lock once answered is closed.
func (h *hold) grant() (drivers.Grant, error) {
	if h.err != nil {
		return drivers.Grant{}, h.err
	}
	return drivers.Grant{Name: h.name, Owner: h.owner, Token: h.token, TTL: h.ttl, Since: h.since, State: h}, nil
}

// released is the answer to a release. It needs no lock once gone is closed.
func (h *hold) released() error {
	switch {
	case h.end == nil:
		return nil
	case errors.Is(h.end, drivers.ErrLost):
		return h.end
	}
	return drivers.Lost(drivers.Taken, nil) // the request failed: there was nothing to end
}

func (h *hold) holder() drivers.Holder {
	r := drivers.Holder{Owner: h.owner, Note: h.note, Token: h.token}
	if h.state == held {
		r.Remaining = max(0, h.session.silence-time.Since(h.session.proved))
	}
	return r
}
