package redisnode_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

func TestConformance(t *testing.T) {
	node := servers.For(t, servers.Redis, servers.Options{Durable: true}).Nodes[0]
	conformance.Run(t, conformance.Config{
		Name:    "redis",
		TTL:     time.Second,
		Open:    func(ctx context.Context) (drivers.Driver, error) { return tryOpen(ctx, "redis://"+node.Addr()) },
		Restart: node.Restart,
	})
}
