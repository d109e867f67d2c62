package redisnode

import (
	"context"
	"fmt"

	"github.com/lockkit/lock/drivers"
)

// Inspect implements drivers.Inspector.
func (d *Driver) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	if err := drivers.CheckName(name); err != nil {
		return drivers.Holder{}, err
	}
	var holder drivers.Holder
	err := d.call(ctx, func(n *Node) (err error) {
		holder, err = n.Inspect(ctx, name)
		return err
	})
	if err != nil {
		return drivers.Holder{}, err
	}
	return holder, nil
}

// Check implements drivers.Checker. From then on Guarantees tells what it found.
func (d *Driver) Check(ctx context.Context) (drivers.Report, error) {
	var server Server
	err := d.call(ctx, func(n *Node) (err error) {
		server, err = n.Server(ctx)
		return err
	})
	if err != nil {
		return drivers.Report{}, err
	}
	d.promises.Store(uint32(server.promised()))
	return drivers.Report{
		Product: server.Product, Version: server.Version, Servers: []string{server.Addr},
		Promises:    server.promises(),
		Assumptions: assumptions,
		Warnings:    server.Warnings(),
	}, nil
}

var assumptions = []string{
	"the server's clock is never set back while a token counter is lost, nor by more than 7 days",
	"no replica that is not connected now is promoted in the server's place",
}

// promises has a line for each guarantee.
func (s Server) promises() []drivers.Promise {
	why := map[drivers.Guarantee]string{
		drivers.Fencing: s.whyNotFencing(),
		drivers.Durable: "not read yet: whether appendfsync is always and nothing is evicted",
		drivers.Fair:    "Redis keeps no queue of the waiters",
		drivers.Prompt:  "waiters poll",
	}
	var lines []drivers.Promise
	for _, g := range drivers.Guarantees {
		line := drivers.Promise{Guarantee: g, Made: why[g] == ""}
		if !line.Made {
			line.Why = fmt.Sprintf("redis %s: %s", s.Addr, why[g])
		}
		lines = append(lines, line)
	}
	return lines
}

func (s Server) promised() drivers.Guarantee {
	var g drivers.Guarantee
	for _, line := range s.promises() {
		if line.Made {
			g |= line.Guarantee
		}
	}
	return g
}

func (s Server) whyNotFencing() string {
	switch {
	case s.Unread != "":
		return s.Unread + ", so it may be a replica or have one"
	case s.Refuse() != nil:
		return s.Refuse().Error()
	case s.Addr == failoverAddr:
		return "a sentinel may promote a replica that lacks the last tokens"
	case s.Replicas > 0:
		return fmt.Sprintf("has replicas (%d): one that is promoted may lack the last tokens", s.Replicas)
	}
	return ""
}

// failoverAddr is what redis.NewFailoverClient calls its server.
const failoverAddr = "FailoverClient"
