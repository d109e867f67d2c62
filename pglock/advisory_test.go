package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/pglock"
)

func plain(name string) drivers.Request {
	r := request(name)
	r.Fenced = false
	return r
}

// advisoryLocks tells how many advisory locks of this test's table are held.
func advisoryLocks(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	return query[int](t, conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1::regclass::oid", table(t))
}

// backend is the process that holds a name.
func backend(t *testing.T, conn *pgx.Conn, name string) int {
	t.Helper()
	return query[int](t, conn, "SELECT k.pid FROM pg_locks k JOIN "+table(t)+" l ON k.classid = l.tableoid AND k.objid = l.id::oid AND k.objsubid = 2 WHERE l.name = $1",
		[]byte("lock/"+name))
}

// terminate ends a backend and waits for its end.
func terminate(t *testing.T, conn *pgx.Conn, pid int) {
	t.Helper()
	query[bool](t, conn, "SELECT pg_terminate_backend($1)", pid)
	eventually(t, func() error {
		if query[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) > 0 {
			return errors.New("the backend is still there")
		}
		return nil
	})
}

func TestRenewalsKeepASilentSession(t *testing.T) {
	t.Parallel()
	renewalsKeep(t, open(t, "lock_mode=advisory"), open(t, "lock_mode=advisory"))
}

// renewalsKeep holds a lock of a for longer than its time, which b can tell.
func renewalsKeep(t *testing.T, a, b drivers.Driver) {
	r := plain("renewed")
	r.TTL = 2 * time.Second
	g := acquire(t, a, r)
	for began := time.Now(); time.Since(began) < 2*g.TTL; time.Sleep(g.TTL / 10) {
		if _, err := a.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		_, err := b.TryAcquire(t.Context(), request("renewed"))
		wantErr(t, "a renewed lock", err, drivers.ErrHeld)
	}
}

func TestATerminatedSessionLosesItsLocks(t *testing.T) {
	a, b := open(t, "lock_mode=advisory"), open(t, "lock_mode=advisory")
	conn := client(t, server(t))
	lost := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	watching := make(chan error)
	go func() {
		watching <- a.(drivers.Watcher).Watch(ctx, func(owner string, err error) {
			if !errors.Is(err, drivers.ErrLost) {
				t.Errorf("lost with %v", err)
			}
			lost <- owner
		})
	}()
	one, two, done := acquire(t, a, plain("1")), acquire(t, a, plain("2")), acquire(t, a, plain("3"))
	fenced := acquire(t, a, request("4")) // on another session
	release(t, a, done)
	terminate(t, conn, backend(t, conn, "1"))

	want := map[string]bool{one.Owner: true, two.Owner: true}
	for len(want) > 0 {
		select {
		case owner := <-lost:
			if !want[owner] {
				t.Fatalf("%s is reported as lost", owner)
			}
			delete(want, owner)
		case <-time.After(patience):
			t.Fatal("the loss was not reported")
		}
	}
	var why *drivers.LostError
	if _, err := a.Renew(t.Context(), one); !errors.As(err, &why) || why.Reason != drivers.SessionEnded || errors.Is(err, drivers.ErrUnavailable) {
		t.Fatalf("renewal: %v", err)
	}
	wantErr(t, "release", a.Release(t.Context(), two), drivers.ErrLost)
	if _, err := a.Renew(t.Context(), fenced); err != nil {
		t.Fatal("a lock of another session is lost:", err)
	}
	acquire(t, b, request("1"))
	acquire(t, a, request("2")) // on a new session
	cancel()
	wantErr(t, "watch", <-watching, context.Canceled)
}

func TestEndedContextsLoseNoLockOfTheirSession(t *testing.T) {
	a, b := open(t, "lock_mode=advisory"), open(t, "lock_mode=advisory")
	conn := client(t, server(t))
	var grants []drivers.Grant
	for i := range 100 {
		grants = append(grants, acquire(t, a, plain(fmt.Sprint(i))))
	}
	pid := backend(t, conn, "0")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Microsecond)
			defer cancel()
			r := plain(fmt.Sprint("x", i%20))
			if g, err := a.TryAcquire(ctx, r); err == nil {
				_ = a.Release(ctx, g)
			} else if ctx.Err() == nil && !errors.Is(err, drivers.ErrHeld) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, g := range grants {
		if _, err := a.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	if now := backend(t, conn, "99"); now != pid {
		t.Fatalf("the session was replaced: backend %d, then %d", pid, now)
	}
	for i := range 20 { // what was given up was given back
		r := request(fmt.Sprint("x", i))
		release(t, b, acquireSoon(t, b, r))
	}
	if n := advisoryLocks(t, conn); n != len(grants) {
		t.Fatalf("%d locks are held, want %d", n, len(grants))
	}
}

func TestASessionHoldsABoundedNumberOfLocks(t *testing.T) {
	a := open(t, "lock_mode=advisory")
	conn := client(t, server(t))
	const locks = 600
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			if _, err := a.TryAcquire(t.Context(), plain(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := advisoryLocks(t, conn); n != locks {
		t.Fatalf("%d locks are held, want %d", n, locks)
	}
	most := query[int](t, conn, `SELECT max(n) FROM (SELECT count(*) AS n FROM pg_locks
		WHERE locktype = 'advisory' AND classid = $1::regclass::oid GROUP BY pid) AS per_session`, table(t))
	if most > 256 {
		t.Fatalf("a session holds %d locks", most)
	}
}

func TestTheNumberOfLocksIsLimited(t *testing.T) {
	a := open(t, "lock_mode=advisory", "lock_max_held=3")
	var grants []drivers.Grant
	for i := range 3 {
		grants = append(grants, acquire(t, a, plain(fmt.Sprint(i))))
	}
	var wrong *drivers.ConfigError
	if _, err := a.TryAcquire(t.Context(), plain("3")); !errors.As(err, &wrong) || wrong.Key != "lock_max_held" {
		t.Fatalf("got %v", err)
	}
	release(t, a, grants[0])
	acquire(t, a, plain("3"))
}

func TestAnUnusedSessionEnds(t *testing.T) {
	name := "app" + rand.Text()
	a := open(t, "lock_mode=advisory", "application_name="+name)
	conn := client(t, server(t))
	r := plain("n")
	r.TTL = 500 * time.Millisecond
	for range 2 { // and the next request opens another one
		release(t, a, acquire(t, a, r))
		eventually(t, func() error {
			if query[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name) > 0 {
				return errors.New("the session is still there")
			}
			return nil
		})
		r.Owner = rand.Text()
	}
}

func TestALockWhoseTokenFailsIsGivenBack(t *testing.T) {
	a, b := open(t, "lock_mode=advisory"), open(t, "lock_mode=advisory")
	conn := client(t, server(t))
	r := request("n")
	r.TTL = time.Second
	release(t, a, acquire(t, a, r))
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "UPDATE "+table(t)+" SET token = token"); err != nil {
		t.Fatal(err)
	}
	r.Owner = rand.Text()
	_, err = a.TryAcquire(t.Context(), r)
	wantErr(t, "acquire while somebody keeps the row", err, drivers.ErrUnavailable)
	if n := advisoryLocks(t, conn); n != 0 {
		t.Fatalf("%d locks are left", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	acquire(t, b, request("n"))
}

func TestNewAdvisoryTakesAConfiguration(t *testing.T) {
	config, err := pgx.ParseConfig("postgres://lockkit@" + server(t) + "/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	before := len(config.RuntimeParams)
	d, err := pglock.NewAdvisory(t.Context(), config, &pglock.Options{Table: table(t), Create: true})
	if err != nil {
		t.Fatal(err)
	}
	release(t, d, acquire(t, d, request("n")))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if len(config.RuntimeParams) != before {
		t.Fatal("the caller's configuration was changed")
	}
	var wrong *drivers.ConfigError
	if _, err := pglock.NewAdvisory(t.Context(), nil, nil); !errors.As(err, &wrong) {
		t.Fatalf("nil: got %v, want a *ConfigError", err)
	}
}
