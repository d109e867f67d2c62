package pglock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockkit/lock/drivers"
)

// watch has the losses of d told to lost.
func watch(t *testing.T, d drivers.Driver, lost func(owner string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.(drivers.Watcher).Watch(ctx, func(owner string, _ error) { lost(owner) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	time.Sleep(10 * time.Millisecond) // Watch does not say when it has begun
}

func TestTheDriverTellsTheLossesBeforeItEndsASession(t *testing.T) {
	for _, ask := range []func(string) drivers.Request{plain, request} {
		a, b := open(t, "lock_mode=advisory"), open(t, "lock_mode=advisory")
		told := make(chan string, 100)
		watch(t, a, func(owner string) {
			time.Sleep(2 * time.Millisecond)
			told <- owner
		})
		names := map[string]string{} // by owner
		for i := range 50 {
			g := acquire(t, a, ask(fmt.Sprint(i)))
			names[g.Owner] = g.Name
		}
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		for len(names) > 0 {
			for owner, name := range names { // others get what they don't know to be lost?
				g, err := b.TryAcquire(t.Context(), plain(name))
				if err != nil {
					break // one is enough: they are freed together
				}
				untold(t, told, names)
				if names[owner] != "" {
					t.Fatalf("%s was free before its loss was told", name)
				}
				release(t, b, g)
				break
			}
			untold(t, told, names)
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			release(t, b, acquireSoon(t, b, plain(fmt.Sprint(i))))
		}
	}
}

// untold takes off names what was told by now.
func untold(t *testing.T, told chan string, names map[string]string) {
	t.Helper()
	for {
		select {
		case owner := <-told:
			if names[owner] == "" {
				t.Fatalf("%s is told as lost", owner)
			}
			delete(names, owner)
		default:
			return
		}
	}
}

func TestAWatcherThatHangsDoesNotKeepASession(t *testing.T) {
	a, b := open(t, "lock_mode=advisory"), open(t, "lock_mode=advisory")
	letGo := make(chan struct{})
	watch(t, a, func(string) { <-letGo })
	t.Cleanup(func() { close(letGo) }) // before the one of watch
	acquire(t, a, plain("n"))
	began := time.Now()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Fatalf("Close took %v", took)
	}
	acquireSoon(t, b, plain("n"))
}
