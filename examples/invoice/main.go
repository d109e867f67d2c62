// Invoice gives out invoice numbers without gaps and without twins: a
// correctness lock. It asks for fencing tokens, so that a backend that has none
// is refused at start-up:
//
//	LOCK_URL=etcd://127.0.0.1:2379                   go run ./examples/invoice
//	LOCK_URL=redlock://10.0.0.1,10.0.0.2,10.0.0.3    go run ./examples/invoice   # refused, with the reason
//
// The numbers are kept in memory here; in a real program the token is checked
// where the data is, in the transaction that reads and writes it.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/lockkit/lock"
	_ "github.com/lockkit/lock/drivers/all"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b, err := lock.Open(ctx, os.Getenv("LOCK_URL"), lock.Fencing)
	if err != nil {
		return err
	}
	defer b.Close()
	l, err := b.FencedLock("invoices", nil)
	if err != nil {
		return err
	}
	store := &numbers{}
	for range 3 {
		err := lock.DoFenced(ctx, l, func(_ context.Context, token lock.Token) error {
			last, err := store.Enter(token)
			if err != nil {
				return err
			}
			fmt.Printf("invoice %d (token %d)\n", last+1, token)
			return store.Write(token, last+1)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// numbers is a store that checks tokens: on entry, before anything is read, and
// on every write.
type numbers struct {
	mu   sync.Mutex
	last int
	seen lock.Token
}

// Enter returns the last number, and shuts out all older tokens.
func (n *numbers) Enter(token lock.Token) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if token < n.seen {
		return 0, lock.ErrStale
	}
	n.seen = token
	return n.last, nil
}

// Write sets the last number.
func (n *numbers) Write(token lock.Token, last int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if token < n.seen {
		return lock.ErrStale
	}
	n.last = last
	return nil
}
