package zkelection

import (
	"context"
	"errors"
	"time"

	"github.com/lockkit/lock/drivers"
)

// beats is how many requests the keeper sends in a session's time. A follower
// tells the leader of a session's requests every half tick. If it dies, what
// the leader knows is older than the last answer by half a tick and the time
// between two requests; the margin of a quarter covers both for sessions of
// three ticks or more.
const beats = 12

// keep runs as long as the driver. It keeps the session busy, notices its end,
// and ends grants that nobody renews: their nodes would live as long as the
// session does.
func (d *Driver) keep() {
	beating := make(chan struct{}, 1)
	for {
		s := d.dialer.session()
		timer := time.NewTimer(beatPause(s))
		select {
		case <-s.ended:
			d.dropLost()
		case <-timer.C:
			d.beat(beating)
			d.dropLost() // two sessions may have ended since the last look
			d.dropStale()
			d.forgetDead()
		case <-d.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// beat sends a read and does not wait for its answer, which may never come.
func (d *Driver) beat(beating chan struct{}) {
	select {
	case beating <- struct{}{}:
	default:
		return // the last one is still on its way
	}
	go func() {
		if _, _, err := d.conn.Exists(d.base); err == nil || refused(err) {
			d.hear()
		}
		<-beating
	}()
}

func beatPause(s *session) time.Duration { return max(s.timeout()/beats, firstPause) }

func (d *Driver) hear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = time.Now()
}

// silence is how long no beat has been answered.
func (d *Driver) silence() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.heard)
}

// dropLost forgets the grants of former sessions and reports them. If only the
// time-out is another one, their nodes are still there.
func (d *Driver) dropLost() {
	d.mu.Lock()
	current := d.dialer.session()
	var lost []string
	for owner, p := range d.places {
		if p.session == current {
			continue
		}
		d.endLocked(p, drivers.SessionEnded)
		if p.session.id == current.id {
			d.buryLocked(p.name, owner)
		}
		if !p.renewed.IsZero() {
			lost = append(lost, owner)
		}
	}
	report := d.lost
	d.mu.Unlock()
	if report == nil {
		return
	}
	for _, owner := range lost {
		report(owner, drivers.Lost(drivers.SessionEnded, nil))
	}
}

// dropStale removes grants that were not renewed in their time.
func (d *Driver) dropStale() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for owner, p := range d.places {
		if !p.renewed.IsZero() && time.Since(p.renewed) > p.session.timeout() {
			d.endLocked(p, drivers.Expired)
			d.buryLocked(p.name, owner)
		}
	}
}

func (d *Driver) forgetDead() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for owner, since := range d.dead {
		if time.Since(since) > deadFor {
			delete(d.dead, owner)
		}
	}
}

// Watch reports the grants that ended with their session.
func (d *Driver) Watch(ctx context.Context, lost func(owner string, err error)) error {
	d.mu.Lock()
	if d.lost != nil {
		d.mu.Unlock()
		return errors.New("zkelection: Watch is called twice")
	}
	d.lost = lost
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.lost = nil
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.ctx.Done():
		return drivers.ErrClosed
	}
}
