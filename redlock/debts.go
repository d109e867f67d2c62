package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

const (
	debtLife   = time.Minute // then a server that comes back keeps the hold for its time to live
	maxDebts   = 10_000      // of one server; the oldest are given up
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// debts are the releases that a server could not be told of. One goroutine for
// each server pays them, for as long as there are any.
type debts struct {
	mu     sync.Mutex
	owed   []debt
	paying bool
}

type debt struct {
	request drivers.Request
	until   time.Time
}

// owe has the server told of a release as soon as it listens.
func (n *node) owe(r drivers.Request) {
	n.debts.mu.Lock()
	defer n.debts.mu.Unlock()
	n.debts.owed = append(n.debts.owed, debt{r, time.Now().Add(debtLife)})
	if len(n.debts.owed) > maxDebts {
		n.debts.owed = n.debts.owed[1:]
	}
	if !n.debts.paying {
		n.debts.paying = n.background(n.pay)
	}
}

// pay tries until nothing is owed; when the driver is closing, until one fails.
func (n *node) pay(closing <-chan struct{}) {
	pause := firstPause
	for d, owed := n.debts.next(); owed; d, owed = n.debts.next() {
		if n.settle(d) {
			pause = firstPause
			continue
		}
		select {
		case <-closing:
			n.debts.stop()
			return
		default:
		}
		n.debts.postpone(d)
		select {
		case <-closing:
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		}
	}
}

// settle reports whether the server has answered. The grave is dug in any
// case: several requests of the owner may have had no answer.
func (n *node) settle(d debt) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := n.release(ctx, d.request, true)
	return err == nil || errors.Is(err, drivers.ErrLost)
}

// next takes the oldest debt. If there is none the payer must end.
func (d *debts) next() (debt, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.owed) > 0 {
		first := d.owed[0]
		d.owed = d.owed[1:]
		if time.Now().Before(first.until) {
			return first, true
		}
	}
	d.owed, d.paying = nil, false
	return debt{}, false
}

// postpone gives a debt back.
func (d *debts) postpone(first debt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed = append([]debt{first}, d.owed...)
}

func (d *debts) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed, d.paying = nil, false
}
