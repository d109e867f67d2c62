package zkelection

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

// Close removes the grants that are still held, and the session if the driver
// made it. It waits for its background work, at most some seconds.
func (d *Driver) Close() error {
	if !d.beginClose() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	if d.ownsConn {
		closeConn(ctx, d.conn, d.dialer)
	} else {
		d.awaitBurials(ctx)
	}
	d.stop()
	d.awaitWork(ctx)
	return nil
}

// beginClose returns false if Close was called before.
func (d *Driver) beginClose() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	for owner, p := range d.places {
		d.endLocked(p, drivers.SessionEnded)
		if !d.ownsConn { // else the end of the session does it
			d.buryLocked(p.name, owner)
		}
	}
	for owner, f := range d.flights {
		if !d.ownsConn {
			d.buryLocked(f.name, owner)
		}
	}
	d.closed = true
	return true
}

func (d *Driver) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

func (d *Driver) awaitBurials(ctx context.Context) {
	d.mu.Lock()
	burials := make([]*burial, 0, len(d.burials))
	for _, b := range d.burials {
		burials = append(burials, b)
	}
	d.mu.Unlock()
	for _, b := range burials {
		_ = b.wait(ctx)
	}
}

func (d *Driver) awaitWork(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		d.work.Wait()
		close(done)
	}()
	_ = await(ctx, done)
}

// closeConn ends the session, and the socket if no server answers in time.
func closeConn(ctx context.Context, conn *zk.Conn, dialer *Dialer) {
	_ = run(ctx, func() error {
		conn.Close()
		return nil
	})
	dialer.cut()
}
