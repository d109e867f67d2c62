package servers

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

// givenLimit is how long a given server may take to answer: it runs already, so it is not long.
const givenLimit = 10 * time.Second

// given are the running servers that the environment names.
type given struct {
	addrs []string
	url   string // as it was written, if it was a URL
}

func variable(p Product) string { return "LOCKTEST_" + strings.ToUpper(string(p)) + "_ADDR" }

// givenBy returns nil if the environment names no server of the product.
func givenBy(p Product) (*given, error) {
	value := strings.TrimSpace(os.Getenv(variable(p)))
	if value == "" {
		return nil, nil
	}
	if p == Postgres && (strings.HasPrefix(value, "postgres://") || strings.HasPrefix(value, "postgresql://")) {
		return givenURL(value)
	}
	g := &given{}
	for addr := range strings.SplitSeq(value, ",") {
		addr = strings.TrimSpace(addr)
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, fmt.Errorf("servers: %s: want host:port, have %q", variable(p), addr)
		}
		g.addrs = append(g.addrs, addr)
	}
	return g, nil
}

// givenURL keeps the text of a wrong URL out of the error: a password may be in it.
func givenURL(value string) (*given, error) {
	u, err := url.Parse(value)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("servers: %s is not a postgres:// URL with a host", variable(Postgres))
	}
	port := u.Port()
	if port == "" {
		port = "5432"
	}
	return &given{addrs: []string{net.JoinHostPort(u.Hostname(), port)}, url: value}, nil
}

// useGiven checks that the running servers answer and can be what the options want.
func useGiven(ctx context.Context, p Product, r *recipe, o Options, g *given) (*Cluster, error) {
	if reason := g.unfit(p, o); reason != "" {
		return nil, &MissingError{Product: p, Reason: reason, Hint: "unset " + variable(p) + " to start one"}
	}
	addrs := g.addrs
	if p == Redis {
		addrs = addrs[:o.Members] // independent nodes: the others are not needed
	}
	c := &Cluster{Product: p, Source: Source{Kind: Given, Addrs: addrs}, opts: o, recipe: r, url: g.url}
	for i, addr := range addrs {
		c.Nodes = append(c.Nodes, &Node{cluster: c, index: i, addr: addr})
	}
	ctx, cancel := context.WithTimeout(ctx, givenLimit)
	defer cancel()
	err := each(ctx, c.Nodes, func(ctx context.Context, n *Node) error { return n.await(ctx, nil) })
	if err != nil {
		return nil, fmt.Errorf("servers: %s names a server that does not answer: %w", variable(p), err)
	}
	c.Source.Version = c.Nodes[0].version
	o.Logf("servers: %s %s", p, c.Source)
	return c, nil
}

// unfit says why running servers cannot be what the options want, or nothing.
func (g *given) unfit(p Product, o Options) string {
	switch {
	case len(g.addrs) < o.Members:
		return fmt.Sprintf("%s names %d, %d are needed", variable(p), len(g.addrs), o.Members)
	case o.Password != "":
		return "a given server cannot be told a password"
	case len(o.Args) > 0 || len(o.Env) > 0:
		return "a given server cannot be told its arguments"
	}
	return ""
}
