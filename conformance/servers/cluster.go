package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Cluster is a set of servers of one product. Its methods may be called by several goroutines.
type Cluster struct {
	Product Product
	Source  Source
	Nodes   []*Node

	opts   Options
	recipe *recipe
	prog   program
	url    string // of a given server, if it was given by URL

	keeper   *keeper // nil if given
	ports    *ports  // nil if given
	watchers sync.WaitGroup
	life     context.Context // ends when Stop is called
	end      context.CancelCauseFunc
	stop     sync.Once
}

// Addrs returns the host:port of each node.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// URL names the servers as the drivers do: redis:// (the first node), etcd:// and zk:// (all of
// them), postgres:// with its user, database and sslmode. The password is part of it, if there is
// one: do not print it.
func (c *Cluster) URL() string {
	if c.url != "" {
		return c.url
	}
	u := url.URL{Scheme: string(c.Product), Host: strings.Join(c.Addrs(), ",")}
	switch c.Product {
	case Redis:
		u.Host = c.Nodes[0].addr
		if c.opts.Password != "" {
			u.User = url.UserPassword("", c.opts.Password)
		}
	case ZooKeeper:
		u.Scheme = "zk"
	case Postgres:
		u.User = url.User(User)
		if c.opts.Password != "" {
			u.User = url.UserPassword(User, c.opts.Password)
		}
		u.Path, u.RawQuery = "/"+Database, "sslmode=disable"
	}
	// The comma divides hosts for the drivers, which read the user info of each of them.
	return strings.Replace(u.String(), u.User.String(), strings.ReplaceAll(u.User.String(), ",", "%2C"), 1)
}

// Leader returns the node that leads an etcd or ZooKeeper cluster. It waits for a leader as long as
// the context lasts.
func (c *Cluster) Leader(ctx context.Context) (*Node, error) {
	if c.recipe.leads == nil {
		return nil, fmt.Errorf("servers: %s has no leader", c.Product)
	}
	for {
		for _, n := range c.Nodes {
			if ok, err := c.recipe.leads(ctx, n); err == nil && ok {
				return n, nil
			}
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, fmt.Errorf("servers: no node of %s says that it leads: %w", c.Product, err)
		}
	}
}

// Restart kills the processes and starts them again on the same ports with the same data. Members of
// a cluster that lost its majority are to be restarted this way and not one after the other, since
// each is ready only when there is a majority.
func (c *Cluster) Restart(ctx context.Context) error {
	return each(ctx, c.Nodes, func(ctx context.Context, n *Node) error { return n.restart(ctx, nil) })
}

// RestartEmpty is Restart with the data of all nodes wiped.
func (c *Cluster) RestartEmpty(ctx context.Context) error {
	for _, n := range c.Nodes { // all before any is started: one left would give the others its data
		if err := n.Kill(); err != nil {
			return err
		}
	}
	return each(ctx, c.Nodes, func(ctx context.Context, n *Node) error { return n.restart(ctx, n.wipe) })
}

// Stop kills the processes, waits for their end and removes their directories. A restart that is
// under way is broken off. A second call does nothing. It does nothing to given servers.
func (c *Cluster) Stop() {
	c.stop.Do(func() {
		if c.keeper == nil {
			return
		}
		c.end(ErrStopped)
		_ = each(context.Background(), c.Nodes, func(_ context.Context, n *Node) error { n.retire(); return nil })
		c.watchers.Wait() // Logf may be a test's, which must not be called after its end
		c.keeper.close()
		c.ports.release()
	})
}

// startTries bounds the new attempts after another process took a port between our choice and the
// server's bind.
const startTries = 5

func startOwn(ctx context.Context, p Product, r *recipe, o Options) (*Cluster, error) {
	if !canStart {
		return nil, &MissingError{p, "server processes cannot be started on this system", "name a running server in " + variable(p)}
	}
	prog, err := r.find()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		c := &Cluster{Product: p, Source: Source{Kind: Started, Path: prog.path}, opts: o, recipe: r, prog: prog}
		err := c.start(ctx)
		if err == nil {
			return c, nil
		}
		c.Stop()
		if !errors.Is(err, errPortTaken) || try == startTries {
			return nil, fmt.Errorf("servers: %s: %w", p, err)
		}
	}
}

// reserve can be replaced by a test that takes the ports away.
var reserve = reservePorts

// start fills in a cluster. The caller stops it if there is an error.
func (c *Cluster) start(ctx context.Context) (err error) {
	began := time.Now()
	c.life, c.end = context.WithCancelCause(context.Background())
	if c.keeper, err = newKeeper(c.Product, c.prog.executable, c.opts.Dir); err != nil {
		return err
	}
	if c.ports, err = reserve(c.opts.Members * c.recipe.ports); err != nil {
		return err
	}
	for i := range c.opts.Members {
		c.Nodes = append(c.Nodes, c.newNode(i))
	}
	// Not one node after the other: members of a cluster are ready only when they see each other.
	err = each(ctx, c.Nodes, func(ctx context.Context, n *Node) error {
		if err := n.makeData(ctx); err != nil {
			return err
		}
		return n.launch(ctx)
	})
	if err != nil {
		return err
	}
	if c.Source.Version = c.Nodes[0].version; c.Source.Version == "" {
		c.Source.Version = c.recipe.programVersion(c.prog)
	}
	c.opts.Logf("servers: %s %s on %s in %v", c.Product, c.Source,
		strings.Join(c.Addrs(), ","), time.Since(began).Round(time.Millisecond))
	return nil
}

func (c *Cluster) newNode(i int) *Node {
	name := "node" + strconv.Itoa(i)
	ports := c.ports.list[i*c.recipe.ports : (i+1)*c.recipe.ports]
	return &Node{
		cluster: c,
		index:   i,
		addr:    hostPort(ports[0]),
		ports:   ports,
		dir:     filepath.Join(c.keeper.dir, name),
		conf:    filepath.Join(c.keeper.dir, name+".conf"),
		log:     filepath.Join(c.keeper.dir, name+".log"),
	}
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// each calls f for every node at the same time and returns the first error, whereupon the context of
// the others ends.
func each(ctx context.Context, nodes []*Node, f func(context.Context, *Node) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var first error
	var once sync.Once
	for _, n := range nodes {
		wg.Go(func() {
			if err := f(ctx, n); err != nil {
				once.Do(func() { first = err; cancel(err) })
			}
		})
	}
	wg.Wait()
	return first
}

// pollEvery is the pause between two questions whether a server is ready. There is no event to wait
// for: a port that is not yet open announces nothing.
const pollEvery = 5 * time.Millisecond

// pause waits, and returns the context's error if it ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
