package zkelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

func init() {
	drivers.Register("zk", func(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
		return open(ctx, u)
	})
}

// settings are what a URL says.
type settings struct {
	servers []string
	digest  string // user:password
	opts    Options
}

func open(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
	s, err := readURL(u)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d, err := s.connect(ctx)
	if err != nil {
		return nil, err // not d: a nil *Driver is a Driver that is not nil
	}
	return d, nil
}

func readURL(u *drivers.URL) (*settings, error) {
	s := &settings{opts: Options{
		Prefix: u.TakeString("lock_prefix", defaultPrefix),
		Chroot: u.Path,
		TTL:    cmp.Or(u.TTL, defaultTTL),
	}}
	if err := u.Done(); err != nil {
		return nil, err
	}
	if len(u.Nodes) == 0 {
		return nil, &drivers.ConfigError{Key: "url", Problem: "names no server", Fix: "write it like zk://127.0.0.1:2181"}
	}
	for _, n := range u.Nodes {
		s.servers = append(s.servers, n.Addr("2181"))
	}
	if _, err := basePath(s.opts.Chroot, s.opts.Prefix); err != nil {
		return nil, err
	}
	// The protocol has 32 bits for milliseconds.
	if err := drivers.CheckTTL(s.opts.TTL, 1, math.MaxInt32*time.Millisecond); err != nil {
		return nil, err
	}
	return s, s.readUser(u.Nodes)
}

func (s *settings) readUser(nodes []drivers.Node) error {
	first := nodes[0]
	for _, n := range nodes[1:] {
		if n.User != first.User || n.Password != first.Password {
			return &drivers.ConfigError{Key: "user", Problem: "differs between the servers", Fix: "write one user, before the first server"}
		}
	}
	switch {
	case first.User == "" && !first.HasPassword:
		return nil
	case first.User == "" || first.Password == "" || strings.Contains(first.User, ":"):
		return &drivers.ConfigError{Key: "user", Problem: "needs a name without a colon, and a password", Fix: "write it like zk://user:password@127.0.0.1:2181"}
	}
	s.digest = first.User + ":" + first.Password
	s.opts.ACL = zk.AuthACL(zk.PermAll)
	return nil
}

// basePath joins chroot and prefix, which must be paths that ZooKeeper takes.
func basePath(chroot, prefix string) (string, error) {
	chroot, prefix = strings.Trim(chroot, "/"), strings.Trim(prefix, "/")
	if chroot != "" && !validPath(chroot) {
		return "", badPath("chroot", chroot)
	}
	if !validPath(prefix) {
		return "", badPath("lock_prefix", prefix)
	}
	return path.Join("/", chroot, prefix), nil
}

func badPath(key, value string) error {
	return &drivers.ConfigError{
		Key: key, Value: value, Problem: "is not a path for nodes",
		Fix: "use names of letters and digits, divided by /, none of them empty, . or ..",
	}
}

func validPath(p string) bool {
	for element := range strings.SplitSeq(p, "/") {
		if element == "" || drivers.EscapeName(element) != element {
			return false
		}
	}
	return true
}

// connect opens a session and makes a driver of it.
func (s *settings) connect(ctx context.Context) (*Driver, error) {
	bounded, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	dialer := NewDialer(nil)
	ttl := (s.opts.TTL + time.Millisecond - 1).Truncate(time.Millisecond)
	conn, _, err := zk.Connect(s.servers, ttl, zk.WithDialer(dialer.Dial),
		zk.WithHostProvider(&hosts{}), zk.WithLogger(silence{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, drivers.Unavailable(err)
	}
	d := &Driver{conn: conn, dialer: dialer, ownsConn: true, servers: s.servers}
	if err = s.authenticate(bounded, conn); err == nil {
		d, err = start(bounded, d, &s.opts)
	}
	if err != nil {
		go closeConn(context.Background(), conn, dialer)
		return nil, s.explain(ctx, err, dialer.lastError())
	}
	return d, nil
}

func (s *settings) authenticate(ctx context.Context, conn *zk.Conn) error {
	if s.digest == "" {
		return nil
	}
	return run(ctx, func() error { return conn.AddAuth("digest", []byte(s.digest)) })
}

// explain names the servers, and says what the client library does not: why
// it got no connection.
func (s *settings) explain(caller context.Context, err, dialing error) error {
	var config *drivers.ConfigError
	servers := strings.Join(s.servers, ", ")
	switch {
	case errors.As(err, &config):
		return err
	case caller.Err() != nil:
		return fmt.Errorf("zookeeper %s: %w", servers, caller.Err())
	case errors.Is(err, zk.ErrAuthFailed):
		return &drivers.ConfigError{Key: "user", Problem: "was refused by zookeeper " + servers, Fix: "check the user and the password"}
	case errors.Is(dialing, errNotZooKeeper):
		return &drivers.ConfigError{Key: "host", Value: servers, Problem: "does not speak ZooKeeper's protocol", Fix: "use the port for clients, 2181 as a rule"}
	case dialing != nil:
		err = dialing
	}
	return drivers.Unavailable(fmt.Errorf("zookeeper %s does not answer; is it running, and has it a majority? %w", servers, err))
}

// hosts gives the servers in turn. Unlike the library's own it leaves names to
// be resolved at each dial, and lets one round of all servers pass before it
// has the client pause for a second.
type hosts struct {
	mu      sync.Mutex
	servers []string
	next    int
	tried   int
}

func (h *hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

func (h *hosts) Len() int { return len(h.servers) }

func (h *hosts) Next() (server string, pause bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.servers[h.next%len(h.servers)]
	h.next++
	pause = h.tried > 0 && h.tried%len(h.servers) == 0
	h.tried++
	return server, pause
}

func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 0
}

// silence keeps the client from writing to the standard error.
type silence struct{}

func (silence) Printf(string, ...any) {}
