package lock

import (
	"container/heap"
	"sync"
	"time"
)

// tick bounds how late a sleep of the machine, or a clock that ran ahead, is
// noticed by the keeper. Err notices at once.
const tick = 250 * time.Millisecond

// A keeper looks at each lease of a backend when it is due: for its next
// renewal, or for its end. One goroutine serves all leases, and ends with the
// backend or a tick after the last one.
type keeper struct {
	clock *clock
	stop  <-chan struct{}

	mu      sync.Mutex
	due     dueHeap
	wake    chan struct{} // the first lease is due earlier than it was
	running bool
}

func newKeeper(c *clock, stop <-chan struct{}) *keeper {
	return &keeper{clock: c, stop: stop, wake: make(chan struct{}, 1)}
}

// schedule has the lease looked at when the clock reaches at.
func (k *keeper) schedule(l *lease, at moment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.due = at
	if l.place >= 0 {
		heap.Fix(&k.due, l.place)
	} else {
		heap.Push(&k.due, l)
	}
	if !k.running {
		k.running = true
		go k.run()
	} else if k.due[0] == l {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// forget has the lease never looked at again.
func (k *keeper) forget(l *lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.place >= 0 {
		heap.Remove(&k.due, l.place)
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.wake:
		case <-k.stop:
			return
		}
		for _, l := range k.takeDue() {
			l.look()
		}
		wait, more := k.next()
		if !more {
			return
		}
		timer.Reset(wait)
	}
}

func (k *keeper) takeDue() []*lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*lease
	for now := k.clock.now(); len(k.due) > 0 && k.due[0].due <= now; {
		due = append(due, heap.Pop(&k.due).(*lease))
	}
	return due
}

// next tells how long to sleep, or that there is nothing left to keep.
func (k *keeper) next() (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.due) == 0 {
		k.running = false
		return 0, false
	}
	return min(max(0, k.due[0].due-k.clock.now()), tick), true
}

// dueHeap orders leases by due; lease.place is the index, or -1.
type dueHeap []*lease

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *dueHeap) Push(x any) {
	l := x.(*lease)
	l.place = len(*h)
	*h = append(*h, l)
}

func (h *dueHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.place = -1
	return l
}
