package zkelection

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/lockkit/lock/drivers"
)

// kind begins the names of the nodes that queue for a lock. Children of other
// kinds are somebody else's and are ignored.
const kind = "lock-"

// A node is one place in the queue of a lock.
type node struct {
	path  string
	owner string
	seq   int32
}

// lockPath is the parent of the queue of a lock.
func (d *Driver) lockPath(name string) string {
	return d.base + "/" + drivers.EscapeName(name)
}

// nodePath is the path of an owner's node before the server adds the sequence
// number.
func (d *Driver) nodePath(name, owner string) string {
	return d.lockPath(name) + "/" + kind + drivers.EscapeName(owner) + "-"
}

// parseNode returns false for a foreign child.
func parseNode(parent, child string) (node, bool) {
	rest, ours := strings.CutPrefix(child, kind)
	dash := strings.LastIndexByte(rest, '-')
	if !ours || dash < 0 {
		return node{}, false
	}
	owner, ok := drivers.UnescapeName(rest[:dash])
	seq, err := strconv.ParseInt(rest[dash+1:], 10, 32)
	if !ok || err != nil || len(rest[dash+1:]) != 10 {
		return node{}, false
	}
	return node{path: parent + "/" + child, owner: owner, seq: int32(seq)}, true
}

// A queue is what a server said of a lock: its nodes in order, the holder
// first, and the version of their parent.
type queue struct {
	nodes   []node
	version int32
}

func (q queue) index(nodePath string) int {
	return slices.IndexFunc(q.nodes, func(n node) bool { return n.path == nodePath })
}

// list reads the queue of a lock. A follower may lag behind: what it says has
// been true, and is not older than what this session has seen.
func (d *Driver) list(ctx context.Context, name string) (queue, error) {
	parent := d.lockPath(name)
	return call(ctx, func() (queue, error) {
		children, stat, err := d.conn.Children(parent)
		if err != nil {
			return queue{}, err
		}
		q := queue{version: stat.Version}
		for _, child := range children {
			if n, ok := parseNode(parent, child); ok {
				q.nodes = append(q.nodes, n)
			}
		}
		slices.SortFunc(q.nodes, func(a, b node) int { return cmp.Compare(a.seq, b.seq) })
		return q, nil
	})
}

// listNow is list with all that was acknowledged to anyone before the call.
func (d *Driver) listNow(ctx context.Context, name string) (queue, error) {
	if err := d.sync(ctx, d.lockPath(name)); err != nil {
		return queue{}, err
	}
	return d.list(ctx, name)
}

// sync returns when this session's server has applied all that was acknowledged
// to anyone before the call, or zk.ErrNoNode if there is no such node.
//
// ZooKeeper's own sync does not do that where the server is the leader: it
// answers from what it has applied itself, and followers may be ahead of it. A
// transaction goes through all of it, and changes nothing.
func (d *Driver) sync(ctx context.Context, at string) error { return d.prover.prove(ctx, at) }

func (d *Driver) delete(ctx context.Context, nodePath string) error {
	return run(ctx, func() error { return d.conn.Delete(nodePath, -1) })
}

// holder describes who has a node. It is for people: what can't be read is
// left out.
func (d *Driver) holder(ctx context.Context, n node) (drivers.Holder, error) {
	return call(ctx, func() (drivers.Holder, error) {
		h := drivers.Holder{Owner: n.owner}
		data, stat, err := d.conn.Get(n.path)
		if err != nil {
			return h, err
		}
		h.Note, h.Token = string(data), drivers.Token(stat.Czxid)
		return h, nil
	})
}

// makeParents makes the parent of a lock, and what is missing above it.
func (d *Driver) makeParents(ctx context.Context, name string) error {
	return run(ctx, func() error { return d.makeContainer(d.lockPath(name)) })
}

func (d *Driver) makeContainer(at string) error {
	err := d.createContainer(at)
	if errors.Is(err, zk.ErrNoNode) && path.Dir(at) != "/" {
		if err = d.makeContainer(path.Dir(at)); err == nil {
			err = d.createContainer(at)
		}
	}
	return err
}

// createContainer makes a node that the server removes some time after its
// last child, or a persistent one where the server has no such nodes.
func (d *Driver) createContainer(at string) error {
	_, err := d.conn.CreateContainer(at, nil, zk.FlagContainer, d.acl)
	if isUnimplemented(err) {
		_, err = d.conn.Create(at, nil, zk.FlagPersistent, d.acl)
	}
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}
