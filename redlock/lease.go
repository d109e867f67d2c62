package redlock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A lease is what one owner asks of the servers. Each server gets its requests
// one after the other, so that no request is overtaken by its release.
type lease struct {
	driver  *Driver
	request drivers.Request
	done    atomic.Bool // it was held and is released

	mu   sync.Mutex
	last []chan struct{} // per server: closed when its last request has ended
	at   []standing      // per server; for the request whose turn it is
}

// A standing is what is known of a lease on one server.
type standing struct {
	held    bool // the server may hold it
	unclear bool // a request has had no answer, and may arrive at any time
	missing bool // nobody held the name when it was to be renewed
	ended   bool // a release ended it
}

func (d *Driver) newLease(r drivers.Request) *lease {
	l := &lease{driver: d, request: r, last: make([]chan struct{}, len(d.nodes)), at: make([]standing, len(d.nodes))}
	none := make(chan struct{})
	close(none)
	for i := range l.last {
		l.last[i] = none
	}
	return l
}

// attempts are the last ones that failed. Package lock releases each of them by
// name and owner; what is known of it then spares the servers the request, or
// has it sent after the attempt's own.
type attempts struct {
	mu     sync.Mutex
	leases map[string]*lease
	owners []string // the oldest first
}

const maxAttempts = 1000

func (a *attempts) remember(l *lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.owners) == maxAttempts {
		delete(a.leases, a.owners[0])
		a.owners = a.owners[1:]
	}
	a.leases[l.request.Owner] = l
	a.owners = append(a.owners, l.request.Owner)
}

// forget is for an owner that asks again, which package lock never does.
func (a *attempts) forget(owner string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.leases, owner)
}

func (a *attempts) of(name, owner string) (*lease, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, known := a.leases[owner]
	return l, known && l.request.Name == name
}

// queue takes the next turn on a server: after the one that it returns, until
// the other is closed.
func (l *lease) queue(server int) (before <-chan struct{}, ended chan<- struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := make(chan struct{})
	before, l.last[server] = l.last[server], mine
	return before, mine
}

// A step is one request of a lease to one server.
type step func(ctx context.Context, n *node, l *lease, at *standing) error

// send has each of the servers do the step when its turn comes, and for no
// longer than the bound. Each votes once.
func (d *Driver) send(l *lease, to []int, bound time.Duration, do step) <-chan vote {
	votes := make(chan vote, len(to))
	for _, i := range to {
		before, ended := l.queue(i)
		begun := d.background(func(<-chan struct{}) {
			defer close(ended)
			<-before
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			votes <- vote{node: i, err: do(ctx, d.nodes[i], l, &l.at[i])}
		})
		if !begun {
			close(ended)
			votes <- vote{node: i, err: drivers.ErrClosed}
		}
	}
	return votes
}

func acquire(ctx context.Context, n *node, l *lease, at *standing) error {
	return at.asked(n.acquire(ctx, l.request))
}

func renew(ttl time.Duration) step {
	return func(ctx context.Context, n *node, l *lease, at *standing) error {
		err := n.renew(ctx, l.request, ttl)
		var lost *drivers.LostError
		if errors.As(err, &lost) {
			at.held, at.missing = false, lost.Reason == drivers.Gone
		}
		return err
	}
}

// reseed gives a lease that a majority has just confirmed to a server that had
// no hold of the name. After the deadline it might be somebody else's turn.
func reseed(ttl time.Duration, deadline time.Time) step {
	return func(ctx context.Context, n *node, l *lease, at *standing) error {
		if !at.missing || !time.Now().Before(deadline) {
			return nil
		}
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		at.missing = false
		again := l.request
		again.TTL = ttl
		return at.asked(n.acquire(ctx, again))
	}
}

func release(ctx context.Context, n *node, l *lease, at *standing) error {
	switch {
	case at.ended:
		return nil
	case !at.held && !at.unclear:
		return drivers.Lost(drivers.Taken, nil)
	}
	err := n.release(ctx, l.request, at.unclear)
	switch {
	case err == nil:
		*at = standing{ended: true}
	case errors.Is(err, drivers.ErrLost):
		*at = standing{}
	default:
		at.unclear = true
		n.owe(l.request)
	}
	return err
}

// asked notes the outcome of a request to acquire, and returns it.
func (s *standing) asked(err error) error {
	switch {
	case err == nil:
		s.held = true
	case !refused(err):
		s.unclear = true
	}
	return err
}

// refused reports whether a request that failed is certain to have left nothing
// at the server.
func refused(err error) bool {
	var never *neverSent
	var fault *drivers.ConfigError
	var op *net.OpError
	return errors.Is(err, drivers.ErrHeld) || errors.Is(err, drivers.ErrReleased) ||
		errors.As(err, &never) || errors.As(err, &fault) || errors.As(err, &op) && op.Op == "dial"
}
