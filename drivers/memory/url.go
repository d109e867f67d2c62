package memory

import (
	"context"
	"sync"

	"github.com/lockkit/lock/drivers"
)

func init() { drivers.Register("mem", open) }

var spaces = struct {
	sync.Mutex
	stores map[string]*Store
}{stores: map[string]*Store{}}

// Space is the store of a mem:// URL with that space name; the same name gives
// the same store for the life of the process.
func Space(name string) *Store {
	spaces.Lock()
	defer spaces.Unlock()
	s := spaces.stores[name]
	if s == nil {
		s = NewStore()
		spaces.stores[name] = s
	}
	return s
}

func open(_ context.Context, u *drivers.URL) (drivers.Driver, error) {
	space, err := spaceName(u)
	if err != nil {
		return nil, err
	}
	opts := &Options{Prefix: u.TakeString("lock_prefix", "")}
	if opts.Durable, err = u.TakeBool("lock_durable", false); err != nil {
		return nil, err
	}
	if err := u.Done(); err != nil {
		return nil, err
	}
	if u.TTL != 0 {
		if err := drivers.CheckTTL(u.TTL, minTTL, drivers.MaxTTL); err != nil {
			return nil, err
		}
	}
	return New(Space(space), opts), nil
}

func spaceName(u *drivers.URL) (string, error) {
	switch {
	case len(u.Nodes) == 0 && u.Path == "":
		return "", nil
	case len(u.Nodes) != 1 || u.Path != "" || u.Nodes[0].Port != "" || u.Nodes[0].User != "" || u.Nodes[0].HasPassword:
		return "", &drivers.ConfigError{Key: "host", Value: u.String(), Problem: "has more than a space name", Fix: "write it like mem://tests"}
	}
	return u.Nodes[0].Host, nil
}
