package drivers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
)

// An Opener makes a driver of a URL. It takes its own settings, calls u.Done
// before it sends anything, and then makes sure that the service answers:
// wrong passwords, missing tables and dead servers are found here, within a
// bounded time also if ctx has no end. ctx bounds the opening and nothing
// after it.
type Opener func(ctx context.Context, u *URL) (Driver, error)

var registry = struct {
	sync.RWMutex
	openers map[string]Opener
}{openers: map[string]Opener{}}

// packages tells which import a known scheme is missing.
var packages = map[string]string{
	"mem":        "drivers/memory",
	"redis":      "redisnode",
	"rediss":     "redisnode",
	"redlock":    "redlock",
	"etcd":       "etcdlease",
	"etcds":      "etcdlease",
	"zk":         "zkelection",
	"postgres":   "pglock",
	"postgresql": "pglock",
}

// Register makes a driver available under a URL scheme. It panics if the
// scheme is taken: two packages would quietly swap a program's locks.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.openers[scheme]; taken {
		panic("drivers: scheme " + scheme + " is registered twice")
	}
	registry.openers[scheme] = open
}

// Schemes lists the registered schemes in order.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Sorted(maps.Keys(registry.openers))
}

// Open opens the driver that is registered for the URL's scheme.
func Open(ctx context.Context, u *URL) (Driver, error) {
	registry.RLock()
	open := registry.openers[u.Scheme]
	registry.RUnlock()
	if open == nil {
		return nil, unknownScheme(u.Scheme)
	}
	return open(ctx, u)
}

func unknownScheme(scheme string) error {
	e := &ConfigError{Key: "scheme", Value: scheme, Problem: "is unknown"}
	if pkg, known := packages[scheme]; known {
		e.Problem = "has no driver in this program"
		e.Fix = `import _ "github.com/lockkit/lock/` + pkg + `"`
		return e
	}
	e.Fix = "use one of " + strings.Join(Schemes(), ", ")
	if near, ok := nearest(scheme, Schemes()); ok {
		e.Fix = "did you mean " + near + "://?"
	}
	return e
}
