package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/drivers"
)

// keepTable locks the whole table of this test, as an ALTER TABLE does.
func keepTable(t *testing.T, conn *pgx.Conn) (letGo func()) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+table(t)+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}

// bothKinds runs a test for requests with and without a token.
func bothKinds(t *testing.T, test func(t *testing.T, ask func(string) drivers.Request)) {
	t.Run("plain", func(t *testing.T) { test(t, plain) })
	t.Run("fenced", func(t *testing.T) { test(t, request) })
}

// kept makes sure that a grant lives, and is the only one in the table.
func kept(t *testing.T, conn *pgx.Conn, d drivers.Driver, g drivers.Grant) {
	t.Helper()
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal("another lock of the session is lost:", err)
	}
	if n := advisoryLocks(t, conn); n != 1 {
		t.Fatalf("%d locks are held, want 1", n)
	}
}

func TestALockIsGivenBackWithoutItsRow(t *testing.T) {
	bothKinds(t, func(t *testing.T, ask func(string) drivers.Request) {
		d, conn := open(t, "lock_mode=advisory"), client(t, server(t))
		other, g := acquire(t, d, ask("other")), acquire(t, d, ask("n"))
		if _, err := conn.Exec(t.Context(), "DELETE FROM "+table(t)+" WHERE name = 'lock/n'"); err != nil {
			t.Fatal(err)
		}
		release(t, d, g)
		kept(t, conn, d, other)
	})
}

func TestALockIsGivenBackWhileTheTableIsLocked(t *testing.T) {
	bothKinds(t, func(t *testing.T, ask func(string) drivers.Request) {
		d, conn := open(t, "lock_mode=advisory"), client(t, server(t))
		other, g := acquire(t, d, ask("other")), acquire(t, d, ask("n"))
		letGo := keepTable(t, conn)
		defer letGo()
		release(t, d, g)
		kept(t, conn, d, other)
	})
}

func TestARequestThatFailsCostsNoOtherLock(t *testing.T) {
	bothKinds(t, func(t *testing.T, ask func(string) drivers.Request) {
		t.Parallel()
		d, conn := open(t, "lock_mode=advisory"), client(t, server(t))
		brief := func(name string) drivers.Request {
			r := ask(name)
			r.TTL = 4 * time.Second // a fourth of it is waited for the table
			return r
		}
		other := acquire(t, d, brief("other"))
		letGo := keepTable(t, conn)
		_, err := d.TryAcquire(t.Context(), brief("n"))
		wantErr(t, "acquire while the table is locked", err, drivers.ErrUnavailable)
		kept(t, conn, d, other)
		letGo()
		release(t, d, acquire(t, d, brief("n")))
	})
}

func TestATokenThatFailsCostsNoOtherLock(t *testing.T) {
	t.Parallel()
	d, conn := open(t, "lock_mode=advisory"), client(t, server(t))
	brief := func(name string) drivers.Request {
		r := request(name)
		r.TTL = 4 * time.Second
		return r
	}
	release(t, d, acquire(t, d, brief("n"))) // it has a row
	other := acquire(t, d, brief("other"))
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "UPDATE "+table(t)+" SET token = token WHERE name = 'lock/n'"); err != nil {
		t.Fatal(err)
	}
	_, err = d.TryAcquire(t.Context(), brief("n"))
	wantErr(t, "acquire while somebody keeps the row", err, drivers.ErrUnavailable)
	kept(t, conn, d, other) // and the lock without a token is not
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
