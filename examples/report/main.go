// Report runs a job on one of several machines at a time: an efficiency lock.
// The backend is one line of configuration:
//
//	LOCK_URL=mem://                    go run ./examples/report
//	LOCK_URL=redis://127.0.0.1:6379    go run ./examples/report
//	LOCK_URL=etcd://127.0.0.1:2379     go run ./examples/report
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/lockkit/lock"
	_ "github.com/lockkit/lock/drivers/all" // a real program imports the drivers that it may be pointed at
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b, err := lock.Open(ctx, os.Getenv("LOCK_URL"))
	if err != nil {
		return err
	}
	defer b.Close()
	job := b.Lock("nightly-report", &lock.LockOptions{Note: "nightly report"})
	err = lock.TryDo(ctx, job, writeReport)
	if errors.Is(err, lock.ErrHeld) {
		fmt.Println("skipped:", err)
		return nil
	}
	return err
}

// writeReport stands for the work. Its context ends if the lock is lost.
func writeReport(ctx context.Context) error {
	fmt.Println("writing the report")
	select {
	case <-time.After(2 * time.Second):
		fmt.Println("done")
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
