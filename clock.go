package lock

import "time"

// A moment is time since a clock was made.
type moment = time.Duration

// bootTime is replaced by tests that put the machine to sleep.
var bootTime = systemBootTime

// A clock goes on while the machine sleeps. Go's monotonic clock does not, so
// a lease measured by it alone would outlive its time at the service. The
// later of the two is taken: the monotonic clock is ahead where a test fakes
// it.
type clock struct {
	start     time.Time
	startBoot time.Duration
	boot      func() time.Duration
}

func newClock() *clock {
	return &clock{start: time.Now(), startBoot: bootTime(), boot: bootTime}
}

func (c *clock) now() moment {
	return max(time.Since(c.start), c.boot()-c.startBoot)
}

// An instant is one moment on both scales.
type instant struct {
	at   moment
	wall time.Time
}

func (c *clock) instant() instant { return instant{at: c.now(), wall: time.Now()} }

// moment converts a time that a driver took into a moment, given an instant
// taken before the driver was called. In doubt the result is too early, which
// costs a lease some of its time and never its safety.
func (i instant) moment(t time.Time) moment {
	if !t.Before(i.wall) {
		return i.at + t.Sub(i.wall)
	}
	// The driver counts from an exchange before this call. If the machine
	// slept in between only the wall clock knows.
	return i.at - max(i.wall.Sub(t), i.wall.Round(0).Sub(t.Round(0)))
}
