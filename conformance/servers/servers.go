// Package servers starts real redis, etcd, ZooKeeper and Postgres servers as child processes on
// loopback, for tests and for the lockkit command, and causes the faults that a process can have:
// it is stopped, continued, killed, started again with and without its data.
//
// A test asks for what it needs and is skipped where there is no such server:
//
//	redis := servers.For(t, servers.Redis, servers.Options{})
//	client := dial(redis.Addrs()[0])
//
// Running servers are used instead when LOCKTEST_REDIS_ADDR, LOCKTEST_ETCD_ADDR,
// LOCKTEST_ZOOKEEPER_ADDR or LOCKTEST_POSTGRES_ADDR name them (comma-separated host:port lists, for
// Postgres also one postgres:// URL). Faults of their processes cannot be caused: see [ErrNotOurs].
//
// # What is left behind
//
// Nothing. [Cluster.Stop] ends the processes and removes their directories. When the test process
// ends without calling it (a panic, a time-out of go test, SIGKILL) the kernel kills the servers on
// Linux, and everywhere a small shell that waits for the end of this process kills them and removes
// the directories.
//
// # What it cannot do
//
// Servers speak plain TCP, without TLS, on 127.0.0.1. It starts them on Linux, macOS and other Unix
// systems; elsewhere only running servers can be used.
package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Product is a kind of server.
type Product string

// The products that this package can start.
const (
	Redis     Product = "redis"
	Etcd      Product = "etcd"
	ZooKeeper Product = "zookeeper"
	Postgres  Product = "postgres"
)

// Products returns every product, in the order of the constants.
func Products() []Product { return []Product{Redis, Etcd, ZooKeeper, Postgres} }

// User and Database are the names that a started Postgres knows. The user is a superuser.
const (
	User     = "lockkit"
	Database = "postgres"
)

// Options say which servers are wanted. The zero value is one server with the product's defaults.
type Options struct {
	// Members is the number of servers, 1 if zero. For etcd and ZooKeeper it is 1 or 3 and they
	// form one cluster. For Redis they are independent nodes, as Redlock wants them. Postgres: 1.
	// A given cluster is used as it is if it has at least so many.
	Members int

	// Durable makes Redis write every command to disk before it answers (appendonly yes,
	// appendfsync always). The other products do that anyway. It cannot be seen whether a given
	// server is durable.
	Durable bool

	// Password is asked for by Redis (requirepass) and by Postgres (SCRAM, for the user lockkit).
	// Without it neither asks for one. It never appears in arguments, errors or logs.
	Password string

	// Args are added to the arguments of each server program, after this package's own. For
	// ZooKeeper they are arguments of java, such as -Dzookeeper.cnxTimeout=1.
	Args []string

	// Env is added to the environment of each server program, as "NAME=value". The programs get
	// no other variables from this process but PATH. Their working directory is [Node.Dir].
	Env []string

	// Dir is where the directories of the servers are made, the temporary directory if empty.
	// Postgres runs as another user when this process is root: that user must be able to enter
	// Dir, which is not so for testing.T.TempDir.
	Dir string

	// Logf gets a line for each start and for a server that ends by itself. It may be nil.
	Logf func(format string, args ...any)
}

// Source says where servers come from.
type Source struct {
	Kind    string   // "given": running servers named by the environment; "started": child processes
	Path    string   // the server program (the jar, for ZooKeeper), if started
	Version string   // such as "7.0.15"; empty if a given server does not say it
	Addrs   []string // host:port of each given server
}

// The values of [Source.Kind].
const (
	Given   = "given"
	Started = "started"
)

func (s Source) String() string {
	from := s.Path
	if s.Kind == Given {
		from = strings.Join(s.Addrs, ",")
	}
	version := s.Version
	if version == "" {
		version = "of unknown version"
	}
	return fmt.Sprintf("%s (%s: %s)", version, s.Kind, from)
}

// ErrNotOurs is returned when the fault of a process is asked of a server that this package has not
// started.
var ErrNotOurs = errors.New("faults of the process cannot be caused on a given server")

// ErrStopped is returned by the methods of a node whose cluster was stopped.
var ErrStopped = errors.New("the cluster was stopped")

// MissingError says that there is no server of a product and what would bring one.
type MissingError struct {
	Product Product
	Reason  string // what was looked for and not found
	Hint    string // how to get it, such as an apt-get line
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("servers: no %s: %s; %s", e.Product, e.Reason, e.Hint)
}

// startLimit bounds a start whose context has no deadline. It is meant for a machine that is busy
// with other things: a start takes between 10 ms and 2 s otherwise.
const startLimit = 2 * time.Minute

// Start returns servers of the product that have answered by protocol: the running ones that the
// environment names, or else child processes. The caller must call [Cluster.Stop]. The end of the
// context breaks off a start, for Postgres after the second that initdb takes.
//
// The error is a [*MissingError] if there is no server program, or if the running servers are not
// such as the options want; any other error means that there is one and it did not start.
func Start(ctx context.Context, p Product, o Options) (*Cluster, error) {
	r, err := recipeOf(p)
	if err != nil {
		return nil, err
	}
	if err := o.complete(p); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	given, err := givenBy(p)
	if err != nil {
		return nil, err
	}
	if given != nil {
		return useGiven(ctx, p, r, o, given)
	}
	return startOwn(ctx, p, r, o)
}

// Look says where [Start] would take the servers from, without starting any. A given server is not
// asked, so that its version is empty. The error is a [*MissingError] if there is none.
func Look(p Product) (Source, error) {
	r, err := recipeOf(p)
	if err != nil {
		return Source{}, err
	}
	given, err := givenBy(p)
	if err != nil {
		return Source{}, err
	}
	if given != nil {
		return Source{Kind: Given, Addrs: given.addrs}, nil
	}
	prog, err := r.find()
	if err != nil {
		return Source{}, err
	}
	return Source{Kind: Started, Path: prog.path, Version: r.programVersion(prog)}, nil
}

func (o *Options) complete(p Product) error {
	if o.Members == 0 {
		o.Members = 1
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	allowed := map[Product]bool{
		Redis:     o.Members > 0,
		Etcd:      o.Members == 1 || o.Members == 3,
		ZooKeeper: o.Members == 1 || o.Members == 3,
		Postgres:  o.Members == 1,
	}
	if !allowed[p] {
		return fmt.Errorf("servers: %d members of %s are not possible", o.Members, p)
	}
	if o.Password != "" && p != Redis && p != Postgres {
		return fmt.Errorf("servers: no password can be set for %s", p)
	}
	if strings.ContainsAny(o.Password, "\r\n\x00") {
		return errors.New("servers: a password must be one line")
	}
	return nil
}

// recipe is what the rest of the package knows about a product.
type recipe struct {
	ports int // each node needs so many

	// find looks for the program; the error is a *MissingError.
	find func() (program, error)

	// programVersion reads the version without starting a server; empty if that cannot be.
	programVersion func(program) string

	// prepare fills the empty data directory of a node and writes its configuration.
	prepare func(context.Context, *Node) error

	// argv is the command line that starts a node.
	argv func(*Node) []string

	// probe asks a server once. It returns nil when the server serves, and its version if it says so.
	probe func(ctx context.Context, addr, password string) (version string, err error)

	// rejoin makes the others accept a member that has lost its data; nil if nothing is needed.
	rejoin func(context.Context, *Node) error

	// leads tells whether a node leads its cluster; nil where there is no leader.
	leads func(context.Context, *Node) (bool, error)
}

var recipes = map[Product]*recipe{
	Redis:     &redisRecipe,
	Etcd:      &etcdRecipe,
	ZooKeeper: &zookeeperRecipe,
	Postgres:  &postgresRecipe,
}

func recipeOf(p Product) (*recipe, error) {
	r, ok := recipes[p]
	if !ok {
		return nil, fmt.Errorf("servers: unknown product %q, have %q", p, slices.Sorted(maps.Keys(recipes)))
	}
	return r, nil
}
