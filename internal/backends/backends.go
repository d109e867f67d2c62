// Package backends is what the lockkit command knows of each backend: which
// servers it needs, what its URL looks like, and how the conformance suite must
// be set for it.
//
// Everything goes the way of a user: a URL, the registry of package drivers,
// and the driver that it names.
package backends

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	_ "github.com/lockkit/lock/drivers/all" // registers the schemes
)

// InProcess is where the locks are of a backend that needs no server.
const InProcess = "inside this process"

// A Backend is one way to keep locks.
type Backend struct {
	Name    string
	Product servers.Product // the servers that it needs; empty if none
	Members int             // how many of them
	Quick   int             // how many of them in a quick comparison

	// OneProcess says that other processes have locks of their own.
	OneProcess bool

	// Stays says what a run of the suite leaves behind, beyond its end; nothing
	// if nothing is known to stay.
	Stays string

	schemes []string // the URLs that name it, the first by preference
	mode    string   // lock_mode, where one scheme serves two backends
	url     func(*servers.Cluster) string
	started pace              // on servers of package servers
	given   pace              // on servers with the product's own defaults
	lively  bool              // its client keeps grants alive by itself: see relay
	waive   map[string]string // checks that it can't pass, and why that does no harm
}

// A pace is how the service keeps time.
type pace struct {
	ttl     time.Duration // the shortest time to live that it keeps well
	slack   time.Duration // how much later it may end a grant
	session time.Duration // what a client's session lasts; as long as ttl if zero
}

// The backends in the order of the table. One member of etcd and of ZooKeeper
// writes to one disk and asks nobody, so that a full comparison takes three, as
// in production, and only a quick one takes one.
var all = []Backend{
	{
		Name: "memory", OneProcess: true, schemes: []string{"mem"},
		started: pace{ttl: 300 * time.Millisecond, slack: time.Second},
	},
	{
		Name: "redis", Product: servers.Redis, Members: 1, Quick: 1, schemes: []string{"redis", "rediss"},
		Stays:   "some hundred counters stay for up to seven days",
		url:     func(c *servers.Cluster) string { return c.URL() },
		started: pace{ttl: time.Second, slack: time.Second},
	},
	{
		Name: "redlock", Product: servers.Redis, Members: 5, Quick: 5, schemes: []string{"redlock"},
		url:     redlockURL,
		started: pace{ttl: time.Second, slack: time.Second},
	},
	{
		// The shortest lease is 2 s with the default election time-out; leases are
		// looked at every 0.5 s, late if the machine is busy.
		Name: "etcd", Product: servers.Etcd, Members: 3, Quick: 1, schemes: []string{"etcd", "etcds"},
		url:     func(c *servers.Cluster) string { return c.URL() },
		started: pace{ttl: 2 * time.Second, slack: 2 * time.Second},
	},
	{
		// The time to live is the session's: from 2 to 20 ticks, of 0.2 s here
		// and 2 s by default. It ends at a tick.
		Name: "zookeeper", Product: servers.ZooKeeper, Members: 3, Quick: 1, schemes: []string{"zk"},
		Stays:   "some empty parents stay until the server clears them away",
		url:     func(c *servers.Cluster) string { return c.URL() },
		started: pace{ttl: 2 * time.Second, slack: 2 * time.Second, session: 4 * time.Second},
		given:   pace{ttl: 6 * time.Second, slack: 3 * time.Second, session: 12 * time.Second},
		lively:  true,
		waive: map[string]string{
			"basic/release-defeats-late-acquire": "the service keeps the requests of one session in order, and no other client sends this owner's",
		},
	},
	{
		Name: "postgres-advisory", Product: servers.Postgres, Members: 1, Quick: 1,
		schemes: []string{"postgres", "postgresql"}, mode: "advisory", url: postgresURL,
		Stays:   "a row per name stays for ever, some hundreds",
		started: pace{ttl: time.Second, slack: time.Second},
		waive: map[string]string{
			"basic/release-defeats-late-acquire": "a session's locks are its own, and no other client sends this owner's requests",
		},
	},
	{
		Name: "postgres-cas", Product: servers.Postgres, Members: 1, Quick: 1,
		schemes: []string{"postgres", "postgresql"}, mode: "cas", url: postgresURL,
		Stays:   "a row per name stays for ever, some hundreds",
		started: pace{ttl: time.Second, slack: time.Second},
	},
}

// A server that is busy with the suite is not to be taken for one that is down:
// the default is a tenth of the time to live.
func redlockURL(c *servers.Cluster) string {
	return with("redlock://"+strings.Join(c.Addrs(), ","), "lock_node_timeout", "800ms")
}

func postgresURL(c *servers.Cluster) string { return with(c.URL(), "lock_create", "true") }

// with adds a setting to a URL.
func with(raw, key, value string) string {
	sep := "?"
	if strings.Contains(raw, "?") {
		sep = "&"
	}
	return raw + sep + key + "=" + value
}

// All lists the backends in the order of the table.
func All() []Backend { return slices.Clone(all) }

// Names lists the names of the backends in the order of the table.
func Names() []string {
	var names []string
	for _, b := range all {
		names = append(names, b.Name)
	}
	return names
}

// Find returns the backend of that name.
func Find(name string) (Backend, error) {
	for _, b := range all {
		if b.Name == name {
			return b, nil
		}
	}
	return Backend{}, fmt.Errorf("there is no backend %q: the backends are %s", name, strings.Join(Names(), ", "))
}

// Of returns the backend that a URL names. A scheme of a driver that is not
// among the backends gets one with the suite's defaults.
func Of(rawURL string) (Backend, error) {
	u, err := drivers.ParseURL(rawURL)
	if err != nil {
		return Backend{}, err
	}
	mode := u.TakeString("lock_mode", "cas")
	for _, b := range all {
		if slices.Contains(b.schemes, u.Scheme) && (b.mode == "" || b.mode == mode) {
			return b, nil
		}
	}
	return Backend{Name: u.Scheme, schemes: []string{u.Scheme}}, nil
}

// members is how many servers are started.
func (b Backend) members(quick bool) int {
	if quick {
		return b.Quick
	}
	return b.Members
}
