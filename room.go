package lock

import (
	"context"
	"slices"
	"sync"
)

// Rooms are where the waiters of one process queue for one name, so that they
// take one place at the service together. The first in line deals with the
// service; when it leaves, served or not, the next one begins anew.
type rooms struct {
	mu    sync.Mutex
	names map[string]*room
}

type room struct {
	line  []chan struct{} // the first has been called; a call closes the channel
	nudge chan struct{}   // the name may be free: a lease of this process ended
}

// A place is one waiter's in a room.
type place struct {
	nudge <-chan struct{} // the name may be free
	stood bool            // others were in front: the name is in demand
	leave func()          // must be called
}

// enter waits until the caller is first in line.
func (r *rooms) enter(ctx context.Context, name string) (place, error) {
	turn, rm := r.join(name)
	p := place{nudge: rm.nudge, leave: func() { r.leave(name, rm, turn) }}
	select {
	case <-turn:
		return p, nil
	default:
		p.stood = true
	}
	select {
	case <-turn:
		return p, nil
	case <-ctx.Done():
		p.leave()
		return place{}, ctx.Err()
	}
}

func (r *rooms) join(name string) (chan struct{}, *room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rm := r.names[name]
	if rm == nil {
		rm = &room{nudge: make(chan struct{}, 1)}
		r.names[name] = rm
	}
	turn := make(chan struct{})
	rm.line = append(rm.line, turn)
	if len(rm.line) == 1 {
		close(turn)
	}
	return turn, rm
}

func (r *rooms) leave(name string, rm *room, turn chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := slices.Index(rm.line, turn)
	rm.line = slices.Delete(rm.line, place, place+1)
	switch {
	case len(rm.line) == 0:
		delete(r.names, name)
	case place == 0:
		close(rm.line[0])
	}
}

// nudgeName tells the first in line that the name may be free.
func (r *rooms) nudgeName(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rm := r.names[name]; rm != nil {
		select {
		case rm.nudge <- struct{}{}:
		default:
		}
	}
}
