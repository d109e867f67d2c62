package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

const ttl = 10 * time.Second

func request(owner string) drivers.Request {
	return drivers.Request{Name: "job", Owner: owner, TTL: ttl}
}

func mustAcquire(t *testing.T, d *memory.Driver, owner string) drivers.Grant {
	t.Helper()
	g, err := d.TryAcquire(t.Context(), request(owner))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestRestartEmptyForgetsHoldsAndTokens(t *testing.T) {
	s := memory.NewStore()
	d := memory.New(s, nil)
	first := mustAcquire(t, d, "a")
	s.RestartEmpty()
	if _, err := d.Renew(t.Context(), first); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("renewed a forgotten grant: %v", err)
	}
	if second := mustAcquire(t, d, "b"); second.Token != first.Token {
		t.Errorf("token %d after a restart without data, want %d again", second.Token, first.Token)
	}
}

func TestRestoreBringsAnOldStateBack(t *testing.T) {
	s := memory.NewStore()
	d := memory.New(s, nil)
	old := mustAcquire(t, d, "a")
	snapshot := s.Snapshot()
	if err := d.Release(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, d, "b")
	s.Restore(snapshot)
	h, err := d.Inspect(t.Context(), "job")
	if err != nil || h.Owner != "a" || h.Token != old.Token {
		t.Errorf("the stale copy is held by %+v, %v", h, err)
	}
}

func TestRestoreServesWaitersOfNamesThatAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewStore()
		d := memory.New(s, nil)
		mustAcquire(t, d, "a")
		granted := make(chan error)
		go func() {
			_, err := d.Acquire(t.Context(), request("b"))
			granted <- err
		}()
		synctest.Wait()
		s.RestartEmpty()
		if err := <-granted; err != nil {
			t.Error(err)
		}
	})
}

func TestAWaiterIsServedAtTheHoldersExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(memory.NewStore(), nil)
		mustAcquire(t, d, "crashed")
		began := time.Now()
		g, err := d.Acquire(t.Context(), request("b"))
		if err != nil || time.Since(began) != ttl || g.Token != 2 {
			t.Errorf("got %+v, %v after %v", g, err, time.Since(began))
		}
	})
}

func TestARenewalPutsTheExpiryOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memory.New(memory.NewStore(), nil)
		held := mustAcquire(t, d, "a")
		began := time.Now()
		go func() {
			time.Sleep(ttl / 2)
			_, _ = d.Renew(t.Context(), held)
		}()
		if _, err := d.Acquire(t.Context(), request("b")); err != nil || time.Since(began) != ttl+ttl/2 {
			t.Errorf("served after %v, %v", time.Since(began), err)
		}
	})
}

func TestHooksLoseRequestsAndReplies(t *testing.T) {
	lost := errors.New("lost")
	for when, hooks := range map[string]memory.Faults{
		"request": {Before: func(context.Context, memory.Call) error { return lost }},
		"reply":   {After: func(context.Context, memory.Call) error { return lost }},
	} {
		s := memory.NewStore()
		d := memory.New(s, nil)
		s.SetFaults(hooks)
		if _, err := d.TryAcquire(t.Context(), request("a")); !errors.Is(err, lost) {
			t.Errorf("%s: got %v", when, err)
		}
		s.SetFaults(memory.Faults{})
		_, err := d.Inspect(t.Context(), "job")
		if held := err == nil; held != (when == "reply") {
			t.Errorf("lost %s: held is %v", when, held)
		}
	}
}

func TestSpacesAreShared(t *testing.T) {
	open := func(raw string) *memory.Driver {
		t.Helper()
		u, err := drivers.ParseURL(raw)
		if err != nil {
			t.Fatal(err)
		}
		d, err := drivers.Open(t.Context(), u)
		if err != nil {
			t.Fatal(err)
		}
		return d.(*memory.Driver)
	}
	mustAcquire(t, open("mem://shared"), "a")
	if _, err := open("mem://shared").TryAcquire(t.Context(), request("b")); !errors.Is(err, drivers.ErrHeld) {
		t.Errorf("the same space: %v", err)
	}
	mustAcquire(t, open("mem://shared?lock_prefix=x:"), "c")
	mustAcquire(t, open("mem://other"), "d")
}
