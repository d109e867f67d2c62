package redlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

// poll asks every server something that belongs to no lease.
func (d *Driver) poll(bound time.Duration, ask func(context.Context, *node) error) <-chan vote {
	votes := make(chan vote, len(d.nodes))
	for i, n := range d.nodes {
		begun := d.background(func(<-chan struct{}) {
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			defer cancel()
			votes <- vote{node: i, err: ask(ctx, n)}
		})
		if !begun {
			votes <- vote{node: i, err: drivers.ErrClosed}
		}
	}
	return votes
}

// Inspect implements drivers.Inspector. A holder is who was seen on a majority.
func (d *Driver) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	if err := drivers.CheckName(name); err != nil {
		return drivers.Holder{}, err
	}
	if err := d.refuse(ctx); err != nil {
		return drivers.Holder{}, err
	}
	votes := d.poll(d.patience(), func(ctx context.Context, n *node) error { return n.inspect(ctx, name) })
	t, err := d.decide(ctx, votes, (*tally).holderDecided)
	if err != nil {
		return drivers.Holder{}, err
	}
	if h, held := t.holder(); held {
		return h, nil
	}
	if t.silent > t.nodes-t.quorum {
		return drivers.Holder{}, drivers.Unavailable(t.noQuorum())
	}
	return drivers.Holder{}, drivers.ErrNotHeld
}

// Check implements drivers.Checker.
func (d *Driver) Check(ctx context.Context) (drivers.Report, error) {
	if err := d.refuse(ctx); err != nil {
		return drivers.Report{}, err
	}
	var mu sync.Mutex
	servers := make([]redisnode.Server, len(d.nodes))
	votes := d.poll(d.patience(), func(ctx context.Context, n *node) error {
		server, err := n.server(ctx)
		mu.Lock()
		defer mu.Unlock()
		servers[n.index] = server
		return err
	})
	report := drivers.Report{Product: "redis", Promises: promises, Assumptions: assumptions}
	for range d.nodes {
		select {
		case v := <-votes:
			if v.err != nil {
				report.Warnings = append(report.Warnings, fmt.Sprintf("%s counts in no majority: %v", d.nodes[v.node].locks.Addr(), v.err))
			}
		case <-ctx.Done():
			return drivers.Report{}, unanswered(ctx.Err())
		}
	}
	d.describe(&report, servers)
	if len(report.Warnings) >= d.quorum && report.Version == "" {
		return drivers.Report{}, drivers.Unavailable(fmt.Errorf("redlock: %s", strings.Join(report.Warnings, "; ")))
	}
	return report, nil
}

// describe adds what the servers said of themselves.
func (d *Driver) describe(report *drivers.Report, servers []redisnode.Server) {
	var versions []string
	for i, s := range servers {
		report.Servers = append(report.Servers, d.nodes[i].locks.Addr())
		report.Warnings = append(report.Warnings, s.Warnings()...)
		if s.Version != "" && !slices.Contains(versions, s.Version) {
			versions = append(versions, s.Version)
		}
	}
	report.Version = strings.Join(versions, ", ")
}

var promises = []drivers.Promise{
	{Guarantee: drivers.Fencing, Why: "Redlock's random value orders nothing: a later grant has no larger number than an earlier one"},
	{Guarantee: drivers.Durable, Why: "there are no tokens that could be kept"},
	{Guarantee: drivers.Fair, Why: "the servers keep no queue of the waiters"},
	{Guarantee: drivers.Prompt, Why: "waiters poll"},
}

var assumptions = []string{
	"the clocks of the servers run at the same speed and do not step",
	"no server restarts without its data while it counts for a holder",
	"all clients name the same servers",
}
