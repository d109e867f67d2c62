package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
)

// A Server is what a Redis server says of itself.
type Server struct {
	Addr     string
	Unread   string // why the rest is unknown; empty if it is known
	Product  string // "redis", "valkey"
	Version  string
	RunID    string // new with every start
	Mode     string // "standalone", "cluster", "sentinel"
	Role     string // "master", "slave"
	Replicas int    // that are connected now
	Limit    int64  // maxmemory in bytes, 0 for none
	Policy   string // what is evicted at the limit
}

// An informant is a client or one connection of it.
type informant interface {
	Info(ctx context.Context, sections ...string) *redis.StringCmd
}

// Server asks the server about itself. A server that forbids the question is
// no error: see Server.Unread.
func (n *Node) Server(ctx context.Context) (Server, error) {
	return n.ask(ctx, n.client)
}

// ServerOf is Server over one connection, for a client's OnConnect.
func (n *Node) ServerOf(ctx context.Context, conn *redis.Conn) (Server, error) {
	return n.ask(ctx, conn)
}

// Greet makes sure that the server answers, that it can keep locks and that we
// may have it do so.
func (n *Node) Greet(ctx context.Context) (Server, error) {
	server, err := n.Server(ctx)
	if err != nil {
		return Server{}, err
	}
	if err := server.Refuse(); err != nil {
		return Server{}, err
	}
	// Nobody is an owner without a name, so nothing changes.
	if err := n.Renew(ctx, "?", "", time.Second); err != nil && !errors.Is(err, drivers.ErrLost) {
		return Server{}, err
	}
	return server, nil
}

func (n *Node) ask(ctx context.Context, from informant) (Server, error) {
	text, err := from.Info(ctx).Result()
	if redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "unknown command") {
		return Server{Addr: n.addr, Product: "redis", Unread: "INFO is forbidden"}, nil
	}
	if err != nil {
		return Server{}, n.explain(ctx, err)
	}
	return parseInfo(n.addr, text), nil
}

func parseInfo(addr, text string) Server {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	s := Server{
		Addr: addr, Product: "redis", Version: fields["redis_version"], RunID: fields["run_id"],
		Mode: fields["redis_mode"], Role: fields["role"], Policy: fields["maxmemory_policy"],
	}
	s.Replicas, _ = strconv.Atoi(fields["connected_slaves"])
	s.Limit, _ = strconv.ParseInt(fields["maxmemory"], 10, 64)
	if name := fields["server_name"]; name != "" && name != "redis" {
		s.Product, s.Version = name, fields[name+"_version"]
	}
	if fields["cluster_enabled"] == "1" {
		s.Mode = "cluster"
	}
	s.Version = strings.TrimSpace(s.Version)
	return s
}

// Refuse returns a *drivers.ConfigError for a server that cannot keep locks at
// all: a replica, a sentinel, a node of a cluster, a version before 6.2.
func (s Server) Refuse() error {
	fault := drivers.ConfigError{Key: "host", Value: s.Addr}
	switch {
	case s.Unread != "":
		return nil
	case s.Mode == "sentinel":
		fault.Problem, fault.Fix = "is a sentinel", "use the primary's address"
	case s.Mode == "cluster":
		fault.Problem, fault.Fix = "is a node of a cluster", "use a standalone server"
	case s.Role == "slave":
		fault.Problem, fault.Fix = "is a replica", "use the primary's address"
	case s.Product == "redis" && s.older(6, 2):
		fault.Problem, fault.Fix = "runs Redis "+s.Version, "use version 6.2 or later"
	default:
		return nil
	}
	return &fault
}

func (s Server) older(major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(s.Version, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}

// Warnings are the failings of the server that concern every lock on it.
func (s Server) Warnings() []string {
	if s.Limit > 0 && s.Policy != "noeviction" {
		return []string{fmt.Sprintf("redis %s: maxmemory-policy is %s: a lock may be evicted while it is held", s.Addr, s.Policy)}
	}
	return nil
}
