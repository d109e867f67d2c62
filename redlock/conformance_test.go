package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
)

func TestConformance(t *testing.T) {
	const settings = "?lock_node_timeout=800ms" // for a machine that is busy with other tests
	c := start(t, settings)
	conformance.Run(t, conformance.Config{
		Name: "redlock",
		TTL:  time.Second,
		Open: func(ctx context.Context) (drivers.Driver, error) { return tryOpen(ctx, c.url(settings)) },
	})
}
