package zkelection

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

// Inspect tells who holds a name. The service does not tell for how long.
func (d *Driver) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	if err := drivers.CheckName(name); err != nil {
		return drivers.Holder{}, err
	}
	if err := d.ready(ctx); err != nil {
		return drivers.Holder{}, err
	}
	for {
		q, err := d.listNow(ctx, name)
		if errors.Is(err, zk.ErrNoNode) || err == nil && len(q.nodes) == 0 {
			return drivers.Holder{}, drivers.ErrNotHeld
		}
		if err != nil {
			return drivers.Holder{}, d.fault(err)
		}
		h, err := d.holder(ctx, q.nodes[0])
		if !errors.Is(err, zk.ErrNoNode) { // it went meanwhile
			return h, d.fault(err)
		}
	}
}

// Check reads the live service.
func (d *Driver) Check(ctx context.Context) (drivers.Report, error) {
	if err := d.ready(ctx); err != nil {
		return drivers.Report{}, err
	}
	if err := d.sync(ctx, d.base); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return drivers.Report{}, d.fault(err)
	}
	r := drivers.Report{Product: "zookeeper", Servers: d.addresses()}
	for _, g := range drivers.Guarantees {
		p := drivers.Promise{Guarantee: g, Made: d.Guarantees().Has(g)}
		if !p.Made {
			p.Why = "not read yet: whether the servers flush their log before they answer"
		}
		r.Promises = append(r.Promises, p)
	}
	r.Assumptions = []string{
		"a majority of the servers keep their disks",
		"the session's time-out is three ticks of the servers or more",
	}
	return r, d.checkServer(ctx, &r)
}

func (d *Driver) addresses() []string {
	if len(d.servers) > 0 {
		return d.servers
	}
	return []string{d.conn.Server()}
}

var (
	versionOf = regexp.MustCompile(`(?m)^Zookeeper version: ([0-9][0-9.]*)`)
	modeOf    = regexp.MustCompile(`(?m)^Mode: (\w+)`)
)

// checkServer asks the server that the session is on. It may refuse to tell.
func (d *Driver) checkServer(ctx context.Context, r *drivers.Report) error {
	server := d.conn.Server()
	text, err := call(ctx, func() (string, error) { return d.srvr(server) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	version, mode := versionOf.FindStringSubmatch(text), modeOf.FindStringSubmatch(text)
	if err != nil || version == nil || mode == nil {
		r.Version = "unknown"
		r.Warnings = append(r.Warnings, server+" does not tell its version: let it answer the four-letter word srvr")
		return nil
	}
	r.Version = version[1]
	if mode[1] == "standalone" {
		r.Warnings = append(r.Warnings, server+" stands alone: locks and tokens are gone with its disk")
	}
	return nil
}

const srvrBound = 2 * time.Second

// srvr asks through the connection's own dialer, which may speak TLS.
func (d *Driver) srvr(server string) (string, error) {
	conn, err := d.dialer.dial("tcp", server, srvrBound)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(srvrBound)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 1<<16))
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return string(text), err
}
