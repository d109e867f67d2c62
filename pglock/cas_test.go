package pglock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/pglock"
)

// blocked waits until n statements on this test's table wait for a row.
func blocked(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	eventually(t, func() error {
		got := query[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%'||$1||'%'", table(t))
		if got != n {
			return fmt.Errorf("%d statements wait, want %d", got, n)
		}
		return nil
	})
}

// A race is an acquire and the reclaim of its owner that both wait for the row.
type race struct {
	acquireErr, releaseErr error
	grant                  drivers.Grant
	wg                     sync.WaitGroup
}

func (r *race) acquire(t *testing.T, d drivers.Driver, q drivers.Request) {
	r.wg.Go(func() { r.grant, r.acquireErr = d.TryAcquire(t.Context(), q) })
}

func (r *race) release(t *testing.T, d drivers.Driver, q drivers.Request) {
	r.wg.Go(func() { r.releaseErr = d.Release(t.Context(), drivers.Grant{Name: q.Name, Owner: q.Owner}) })
}

func TestAReclaimDefeatsARequestThatWaitsForTheRow(t *testing.T) {
	for _, c := range []struct {
		name         string
		row, reclaim bool // the name has a row; the reclaim comes first
	}{
		{"acquire first", true, false}, {"reclaim first", true, true},
		{"acquire first, no row", false, false}, {"reclaim first, no row", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, watch, other := open(t, "lock_mode=cas"), client(t, server(t)), client(t, server(t))
			key := []byte("lock/n")
			keep := "INSERT INTO " + table(t) + " (name, mode) VALUES ($1, 'cas')"
			if c.row {
				release(t, d, acquire(t, d, request("n")))
				keep = "UPDATE " + table(t) + " SET token = token WHERE name = $1"
			}
			tx, err := other.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), keep, key); err != nil {
				t.Fatal(err)
			}
			var r race
			q := request("n")
			steps := []func(){func() { r.acquire(t, d, q) }, func() { r.release(t, d, q) }}
			if c.reclaim {
				steps[0], steps[1] = steps[1], steps[0]
			}
			for i, step := range steps {
				step()
				blocked(t, watch, i+1)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.wg.Wait()
			if r.releaseErr != nil && !errors.Is(r.releaseErr, drivers.ErrLost) {
				t.Fatal("reclaim:", r.releaseErr)
			}
			if r.acquireErr == nil {
				_, err := d.Renew(t.Context(), r.grant)
				wantErr(t, "grant of a reclaimed owner", err, drivers.ErrLost)
			} else {
				wantErr(t, "acquire", r.acquireErr, drivers.ErrLost)
			}
			release(t, d, acquire(t, d, request("n")))
		})
	}
}

func TestARefusedAttemptWritesNothing(t *testing.T) {
	a, b := open(t, "lock_mode=cas"), open(t, "lock_mode=cas")
	conn := client(t, server(t))
	g := acquire(t, a, request("n"))
	version := func() string { return query[string](t, conn, "SELECT xmin || ' ' || xmax FROM "+table(t)) }
	before := version()
	_, err := b.TryAcquire(t.Context(), request("n"))
	var held *drivers.HeldError
	if !errors.As(err, &held) || held.Holder.Owner != g.Owner || held.Holder.Token != g.Token || held.Holder.Note != "a note" {
		t.Fatalf("got %+v", err)
	}
	if held.Remaining <= 0 || held.Remaining > g.TTL {
		t.Fatalf("%v are left of %v", held.Remaining, g.TTL)
	}
	if after := version(); after != before {
		t.Fatalf("the row was written: %s, then %s", before, after)
	}
}

func TestDeadOwnersAreBounded(t *testing.T) {
	d := open(t, "lock_mode=cas")
	conn := client(t, server(t))
	g := acquire(t, d, request("n"))
	var last drivers.Request
	for range 70 {
		last = request("n")
		wantErr(t, "reclaim", d.Release(t.Context(), drivers.Grant{Name: "n", Owner: last.Owner}), drivers.ErrLost)
	}
	if n := query[int](t, conn, "SELECT cardinality(dead) FROM "+table(t)); n != 64 {
		t.Fatalf("%d are remembered", n)
	}
	release(t, d, g)
	_, err := d.TryAcquire(t.Context(), last)
	wantErr(t, "the last one", err, drivers.ErrLost)
	if _, err := conn.Exec(t.Context(), "UPDATE "+table(t)+" SET dead_until = now() - interval '1 s'"); err != nil {
		t.Fatal(err)
	}
	acquire(t, d, request("n"))
	if n := query[int](t, conn, "SELECT cardinality(dead) FROM "+table(t)); n != 0 {
		t.Fatalf("%d are remembered for ever", n)
	}
}

func TestOthersTransactionsAreRetried(t *testing.T) {
	d := open(t, "lock_mode=cas", "default_transaction_isolation=serializable")
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for n := 0; n < 20; {
				g, err := d.TryAcquire(t.Context(), request("n"))
				if err == nil {
					err = d.Release(t.Context(), g)
					n++
				}
				if err != nil && !errors.Is(err, drivers.ErrHeld) && !errors.Is(err, drivers.ErrUnavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// ownPool is a pool as a user may have it.
func ownPool(t *testing.T, settings string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://lockkit@"+server(t)+"/postgres?sslmode=disable"+settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestThePoolStaysTheCallers(t *testing.T) {
	pool := ownPool(t, "")
	d, err := pglock.NewCAS(t.Context(), pool, &pglock.Options{Table: table(t), Create: true})
	if err != nil {
		t.Fatal(err)
	}
	release(t, d, acquire(t, d, request("n")))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pool.Ping(t.Context()); err != nil {
		t.Fatal("the pool was closed:", err)
	}
	var wrong *drivers.ConfigError
	if _, err := pglock.NewCAS(t.Context(), nil, nil); !errors.As(err, &wrong) {
		t.Fatalf("nil: got %v, want a *ConfigError", err)
	}
}

// A transaction pooler does that.
func TestForgottenPreparedStatementsDoNoHarm(t *testing.T) {
	pool := ownPool(t, "&pool_max_conns=1")
	d, err := pglock.NewCAS(t.Context(), pool, &pglock.Options{Table: table(t), Create: true})
	if err != nil {
		t.Fatal(err)
	}
	release(t, d, acquire(t, d, request("n")))
	if _, err := pool.Exec(t.Context(), "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, d, request("n"))
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	release(t, d, g)
}
