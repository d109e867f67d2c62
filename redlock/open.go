package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkit/lock/drivers"
)

const (
	openBound = 5 * time.Second        // for servers that do not answer
	openGrace = 500 * time.Millisecond // for a minority that lags
)

// meet makes sure that a majority of the servers answers, can keep locks and
// lets us. If it fails the driver is closed.
func (d *Driver) meet(ctx context.Context) error {
	votes := d.poll(openBound, func(ctx context.Context, n *node) error { return n.greet(ctx) })
	if err := d.count(ctx, votes); err != nil {
		d.stop()
		d.hangUp()
		return err
	}
	return nil
}

// count ends soon after a majority has answered. What is wrong with the
// settings of one server is an error, a minority that is down is none.
func (d *Driver) count(ctx context.Context, votes <-chan vote) error {
	t := &tally{nodes: len(d.nodes), quorum: d.quorum}
	var late <-chan time.Time
	for t.open() > 0 {
		select {
		case v := <-votes:
			var fault *drivers.ConfigError
			if errors.As(v.err, &fault) {
				return fault
			}
			t.add(v)
			if t.agreed() && late == nil {
				late = time.After(openGrace)
			}
		case <-late:
			return nil
		case <-ctx.Done():
			return unanswered(ctx.Err())
		}
	}
	if t.agreed() {
		return nil
	}
	return drivers.Unavailable(fmt.Errorf("%w: are the servers running, and are these their addresses?", t.noQuorum()))
}
