package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

func TestConformance(t *testing.T) {
	store := memory.NewStore()
	conformance.Run(t, conformance.Config{
		Name: "memory",
		TTL:  300 * time.Millisecond,
		Open: func(context.Context) (drivers.Driver, error) {
			return memory.New(store, &memory.Options{Durable: true}), nil
		},
		Restart: func(context.Context) error {
			store.Restore(store.Snapshot())
			return nil
		},
	})
}
