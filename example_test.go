package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/lockkit/lock"
)

// One line of configuration chooses the backend: LOCK_URL may be mem://,
// redis://…, redlock://…, etcd://…, zk://… or postgres://…, for as long as the
// program imports the driver.
func ExampleDo() {
	ctx := context.Background()
	b, err := lock.Open(ctx, "mem://example-do")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()

	err = lock.Do(ctx, b.Lock("nightly-report", nil), func(ctx context.Context) error {
		// ctx ends if the lock is lost: pass it on.
		fmt.Println("mailing the report")
		return nil
	})
	fmt.Println("done:", err)
	// Output:
	// mailing the report
	// done: <nil>
}

// A cron job on three machines: whoever comes second skips this run.
func ExampleTryDo() {
	ctx := context.Background()
	b, err := lock.Open(ctx, "mem://example-trydo")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	other, err := b.Lock("cleanup", nil).Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer other.Release(ctx)

	err = lock.TryDo(ctx, b.Lock("cleanup", nil), func(ctx context.Context) error {
		fmt.Println("cleaning up")
		return nil
	})
	if errors.Is(err, lock.ErrHeld) {
		fmt.Println("another machine is at it")
	}
	// Output:
	// another machine is at it
}

// An account refuses whoever comes with an older token than it has seen.
type account struct {
	balance int
	seen    lock.Token
}

// Enter must be called before the balance is read: a check on writes alone
// loses updates.
func (a *account) Enter(token lock.Token) (balance int, err error) {
	if token < a.seen {
		return 0, lock.ErrStale
	}
	a.seen = token
	return a.balance, nil
}

func (a *account) Write(token lock.Token, balance int) error {
	if token < a.seen {
		return lock.ErrStale
	}
	a.balance = balance
	return nil
}

// A lock can't stop a holder that was paused past the end of its lease. The
// token does, checked where the data is.
func ExampleDoFenced() {
	ctx := context.Background()
	b, err := lock.Open(ctx, "mem://example-fenced", lock.Fencing)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	l, err := b.FencedLock("account/42", nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	acc := &account{balance: 100}
	var paused lock.Token // a holder that reads, and then sleeps for too long
	_ = lock.DoFenced(ctx, l, func(_ context.Context, token lock.Token) error {
		paused = token
		_, err := acc.Enter(token)
		return err
	})
	err = lock.DoFenced(ctx, l, func(_ context.Context, token lock.Token) error {
		balance, err := acc.Enter(token)
		if err != nil {
			return err
		}
		return acc.Write(token, balance+50)
	})
	fmt.Println("the next holder:", err, acc.balance)
	fmt.Println("the paused one:", acc.Write(paused, 100+1), acc.balance)
	// Output:
	// the next holder: <nil> 150
	// the paused one: stale fencing token 150
}

// Data depends on this lock, so the program says what it needs: a backend
// without fencing tokens is refused at start-up. With LOCK_URL=redlock://… this
// prints why; with etcd://… the same program runs.
func ExampleOpen_need() {
	ctx := context.Background()
	b, err := lock.Open(ctx, os.Getenv("LOCK_URL"), lock.Fencing)
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	defer b.Close()
	invoices, err := b.FencedLock("invoices", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = lock.DoFenced(ctx, invoices, func(ctx context.Context, token lock.Token) error {
		fmt.Println("numbering invoices, fenced:", token > 0)
		return nil
	})
	fmt.Println("done:", err)
}

// A refusal tells who is in the way.
func ExampleHeldError() {
	ctx := context.Background()
	b, err := lock.Open(ctx, "mem://example-held?lock_note=month+end")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	if _, err := b.Lock("invoices", nil).Acquire(ctx); err != nil {
		fmt.Println(err)
		return
	}

	_, err = b.Lock("invoices", nil).TryAcquire(ctx)
	var held *lock.HeldError
	if errors.As(err, &held) {
		fmt.Println("held for", held.Holder.Note, "- by this very process:", held.Holder.You)
	}
	// Output:
	// held for month end - by this very process: true
}
