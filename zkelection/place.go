package zkelection

import (
	"cmp"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A place is a node of this driver in a queue. It is the State of a grant.
type place struct {
	node
	name    string
	zxid    int64 // of its creation: the token
	version int32 // that its creation gave to the parent
	session *session
	alone   bool      // it had no brothers when it was made
	since   time.Time // sent at this time, it proved the session alive
	asking  time.Time // since when its waiter asks without an answer; zero if it was answered

	// Guarded by Driver.mu.
	renewed time.Time      // when the last proof of the grant was sent; zero as long as it waits
	over    drivers.Reason // why no renewal may succeed any more; empty as long as it may
}

func (d *Driver) placeOf(g drivers.Grant) *place {
	if p, ok := g.State.(*place); ok {
		return p
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places[g.Owner]
}

// lostAlready returns why the place can't be renewed, or else takes note that
// it was, if renewed is not zero. A renewal that begins after the holder's time
// would give a lost lease back.
func (d *Driver) lostAlready(p *place, renewed time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ttl := p.session.timeout()
	switch {
	case p.session != d.dialer.session():
		return drivers.Lost(drivers.SessionEnded, nil)
	case p.over != "":
		return drivers.Lost(p.over, nil)
	case !renewed.IsZero():
		p.renewed = renewed
	case time.Since(p.renewed) > ttl-margin(ttl):
		return drivers.Lost(drivers.Expired, nil)
	}
	return nil
}

// margin is what a holder takes off its time: see beats.
func margin(ttl time.Duration) time.Duration { return ttl / 4 }

// end makes sure that no renewal of the place succeeds any more.
func (d *Driver) end(p *place, why drivers.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLocked(p, why)
}

func (d *Driver) endLocked(p *place, why drivers.Reason) {
	p.over = cmp.Or(p.over, why)
	if d.places[p.owner] == p {
		delete(d.places, p.owner)
	}
}

// Driver.idle remembers at which version of their parents this driver's grants
// ended. As long as the version stands nobody has queued behind them, so that
// the next attempt need not look.
const maxIdle = 4096

func (d *Driver) takeIdle(name string) (int32, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	version, known := d.idle[name]
	delete(d.idle, name)
	return version, known
}

func (d *Driver) setIdle(p *place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.renewed.IsZero() {
		return // it has only waited: there may be others before it
	}
	if len(d.idle) >= maxIdle {
		clear(d.idle)
	}
	d.idle[p.name] = p.version
}
