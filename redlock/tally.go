package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A vote is one server's answer.
type vote struct {
	node int
	err  error
}

// A tally counts the votes of one round.
type tally struct {
	nodes, quorum int

	yes     []int // who said so
	no      int   // who said held, lost, or nobody's
	silent  int   // who gave no answer that counts
	holders map[string][]drivers.Holder
	why     error // of the first who is silent
}

// decide counts until the round is decided or ctx ends.
func (d *Driver) decide(ctx context.Context, votes <-chan vote, decided func(*tally) bool) (*tally, error) {
	t := &tally{nodes: len(d.nodes), quorum: d.quorum, holders: map[string][]drivers.Holder{}}
	for !decided(t) && t.open() > 0 {
		select {
		case v := <-votes:
			t.add(v)
		case <-ctx.Done():
			return t, unanswered(ctx.Err())
		}
	}
	return t, nil
}

// unanswered is the error of a call that outlived its context.
func unanswered(ended error) error {
	return drivers.Unanswered(fmt.Errorf("redlock: no decision: %w", ended))
}

func (t *tally) add(v vote) {
	var held *drivers.HeldError
	switch {
	case v.err == nil:
		t.yes = append(t.yes, v.node)
	case errors.As(v.err, &held):
		t.no++
		t.holders[held.Holder.Owner] = append(t.holders[held.Holder.Owner], held.Holder)
	case errors.Is(v.err, drivers.ErrLost), errors.Is(v.err, drivers.ErrNotHeld), errors.Is(v.err, drivers.ErrReleased):
		t.no++
	default:
		t.silent++
		if t.why == nil {
			t.why = v.err
		}
	}
}

// open is how many have not voted.
func (t *tally) open() int { return t.nodes - len(t.yes) - t.no - t.silent }

func (t *tally) agreed() bool { return len(t.yes) >= t.quorum }

// denied reports whether so many said no that no majority can be left.
func (t *tally) denied() bool { return t.no > t.nodes-t.quorum }

// others are those that have not said yes.
func (t *tally) others() []int {
	var others []int
	for i := range t.nodes {
		if !slices.Contains(t.yes, i) {
			others = append(others, i)
		}
	}
	return others
}

// decided reports whether a question of yes and no is decided.
func (t *tally) decided() bool {
	open := t.open()
	return t.agreed() || t.denied() || len(t.yes)+open < t.quorum && t.no+open <= t.nodes-t.quorum
}

// acquireDecided reports whether the name was granted, or can't be any more and
// it is plain whether somebody holds it.
func (t *tally) acquireDecided() bool {
	return t.agreed() || len(t.yes)+t.open() < t.quorum && t.holderDecided()
}

// holderDecided reports whether it is plain if one owner holds the name.
func (t *tally) holderDecided() bool {
	most := 0
	for _, seen := range t.holders {
		most = max(most, len(seen))
	}
	return most >= t.quorum || most+t.open() < t.quorum
}

// holder is the owner that was seen on a majority. What remains to it is the
// time until it no longer has one.
func (t *tally) holder() (drivers.Holder, bool) {
	for _, seen := range t.holders {
		if len(seen) >= t.quorum {
			slices.SortFunc(seen, func(a, b drivers.Holder) int { return int(b.Remaining - a.Remaining) })
			return seen[t.quorum-1], true
		}
	}
	return drivers.Holder{}, false
}

// acquireError is nil if the name was granted in time.
func (t *tally) acquireError(elapsed, ttl time.Duration) error {
	if t.agreed() {
		if ttl-elapsed-drivers.Margin(ttl) > 0 {
			return nil
		}
		return drivers.Unavailable(fmt.Errorf("redlock: the servers granted after %v what lasts for %v", elapsed, ttl))
	}
	if h, held := t.holder(); held {
		return &drivers.HeldError{Holder: h, Remaining: h.Remaining}
	}
	err := t.noQuorum()
	if t.silent > t.nodes-t.quorum {
		return drivers.Unavailable(err)
	}
	return err // a split vote
}

// verdict is nil if a majority said yes, matches ErrLost if none can have it,
// and ErrUnavailable if that can't be told.
func (t *tally) verdict() error {
	switch {
	case t.agreed():
		return nil
	case t.denied():
		return drivers.Lost(drivers.Taken, nil)
	}
	return drivers.Unavailable(t.noQuorum())
}

// noQuorum shows the first silent server's error, but does not wrap it: its
// time-out is not the caller's.
func (t *tally) noQuorum() error {
	err := fmt.Errorf("redlock: %w: %d of %d servers agreed, %d disagreed, %d gave no answer",
		drivers.ErrNoQuorum, len(t.yes), t.nodes, t.no, t.silent)
	if t.why != nil {
		err = fmt.Errorf("%w (%v)", err, t.why)
	}
	return err
}
