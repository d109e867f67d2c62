package zkelection_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/zkelection"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	var gates sync.Map // by driver
	addrs := zookeeper(t)
	conformance.Run(t, conformance.Config{
		Name:  "zookeeper",
		TTL:   ttl / 2,
		Slack: 2 * time.Second,
		Open: func(ctx context.Context) (drivers.Driver, error) {
			g := newGate(t)
			d, err := openForSuite(ctx, addrs, g, prefix(t))
			if err == nil {
				gates.Store(d, g)
			}
			return d, err
		},
		Silence: func(d drivers.Driver) (undo func(), err error) {
			g, ok := gates.Load(d)
			if !ok {
				return nil, errors.New("the driver is not of this suite")
			}
			g.(*gate).cut()
			return g.(*gate).mend, nil
		},
		Waive: map[string]string{
			"basic/release-defeats-late-acquire": "the service keeps the requests of one session in order, and no other client sends this owner's",
		},
	})
}

// ownConn is a driver that closes the connection it was made with.
type ownConn struct {
	driver
	conn *zk.Conn
}

func (d ownConn) Close() error {
	err := d.driver.Close()
	d.conn.Close()
	return err
}

func openForSuite(ctx context.Context, addrs []string, g *gate, prefix string) (drivers.Driver, error) {
	dialer := zkelection.NewDialer(g.Dial)
	conn, _, err := zk.Connect(addrs, ttl, zk.WithDialer(dialer.Dial), zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	if err != nil {
		return nil, err
	}
	d, err := zkelection.New(ctx, conn, dialer, &zkelection.Options{Prefix: prefix})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return ownConn{d, conn}, nil
}
