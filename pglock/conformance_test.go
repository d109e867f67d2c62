package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
)

func TestCASKeepsItsPromises(t *testing.T) {
	conformance.Run(t, config(t, "lock_mode=cas&pool_max_conns=16")) // many checks share three drivers
}

func TestAdvisoryKeepsItsPromises(t *testing.T) {
	c := config(t, "lock_mode=advisory")
	c.Waive = map[string]string{
		"basic/release-defeats-late-acquire": "a session's locks are its own: only the driver that asks for a lock can give it back",
	}
	conformance.Run(t, c)
}

func config(t *testing.T, mode string) conformance.Config {
	t.Parallel()
	raw := rawURL(t, server(t), mode)
	return conformance.Config{
		Name: "postgres " + mode,
		TTL:  2 * time.Second, // a release that is a commit has a third of it
		Open: func(ctx context.Context) (drivers.Driver, error) {
			u, err := drivers.ParseURL(raw)
			if err != nil {
				return nil, err
			}
			return drivers.Open(ctx, u)
		},
	}
}
