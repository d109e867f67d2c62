package etcdlease_test

import (
	"context"
	"testing"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

// A member of its own, for it is restarted.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Etcd, servers.Options{})
	conformance.Run(t, conformance.Config{
		Name:    "etcd " + c.Source.Version,
		Open:    func(ctx context.Context) (drivers.Driver, error) { return tryOpen(ctx, c.URL()) },
		Restart: c.Nodes[0].Restart,
	})
}
