package etcdlease

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkit/lock/drivers"
)

// A keyspace is the prefix of all keys. EscapeName leaves no slash in names and
// owners, so that no two of them share a key and no name is in another's queue.
type keyspace string

// queue is what the keys of a name's holder and waiters begin with.
func (k keyspace) queue(name string) string {
	return string(k) + "/" + drivers.EscapeName(name) + "/q/"
}

func (k keyspace) entry(name, owner string) string {
	return k.queue(name) + drivers.EscapeName(owner)
}

// grave is the key that defeats the late requests of an owner.
func (k keyspace) grave(name, owner string) string {
	return string(k) + "/" + drivers.EscapeName(name) + "/t/" + drivers.EscapeName(owner)
}

// checkPrefix keeps keys readable and the roles that are granted on them
// unambiguous.
func checkPrefix(prefix string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	if prefix == "" || len(prefix) > 256 || strings.ContainsFunc(prefix, bad) || strings.HasSuffix(prefix, "/") {
		return &drivers.ConfigError{Key: "lock_prefix", Value: prefix, Problem: "is not a prefix of keys",
			Fix: "use 1 to 256 printable ASCII characters without space and without a slash at the end"}
	}
	return nil
}

// checkOwner keeps owner and note of a value apart.
func checkOwner(owner string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	if owner == "" || len(owner) > 64 || strings.ContainsFunc(owner, bad) {
		return &drivers.ConfigError{Key: "owner", Value: owner, Problem: "is not an owner", Fix: "use 1 to 64 letters and digits"}
	}
	return nil
}

// value is what an entry holds; neither owner nor note has line breaks.
func value(r drivers.Request) string { return r.Owner + "\n" + r.Note }

func holder(kv *mvccpb.KeyValue) drivers.Holder {
	owner, note, _ := strings.Cut(string(kv.Value), "\n")
	return drivers.Holder{Owner: owner, Note: note, Token: drivers.Token(kv.CreateRevision)}
}

// A place is what came of a request to put a key into a queue.
type place struct {
	revision int64            // that created our key; 0 if it was not put
	ahead    *mvccpb.KeyValue // who was there before
	repeated bool             // the request was sent more than once, and may yet arrive again
}

// refusal says why nothing was put.
func (p place) refusal() error {
	if p.ahead == nil {
		return drivers.Lost(drivers.Taken, errBuried)
	}
	return &drivers.HeldError{Holder: holder(p.ahead)}
}

var (
	errKeyGone    = errors.New("the key is gone")
	errBuried     = errors.New("the request was released before it arrived")
	errLeaseEnded = errors.New("etcd leases end before they can be used")
)

func absent(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
}

// A putter puts the key of a request into the queue, on a lease. When it is
// repeated it finds what was put before.
type putter func(ctx context.Context, l *lease, r drivers.Request) (place, error)

// putAlone puts the key if the queue is empty.
func (d *Driver) putAlone(ctx context.Context, l *lease, r drivers.Request) (place, error) {
	queue := d.keys.queue(r.Name)
	resp, err := d.client.Txn(ctx).
		If(absent(queue).WithPrefix(), absent(d.keys.grave(r.Name, r.Owner))).
		Then(clientv3.OpPut(d.keys.entry(r.Name, r.Owner), value(r), clientv3.WithLease(l.id))).
		Else(clientv3.OpGet(queue, clientv3.WithFirstCreate()...)).
		Commit()
	switch {
	case err != nil:
		return place{}, err
	case resp.Succeeded:
		return place{revision: resp.Header.Revision}, nil
	}
	there := first(resp.Responses[0].GetResponseRange().Kvs)
	if ours(there, l) {
		return place{revision: there.CreateRevision}, nil
	}
	return place{ahead: there}, nil
}

// ours tells whether a key was put by an earlier try of the same request: no
// other request has used its lease since it was taken.
func ours(kv *mvccpb.KeyValue, l *lease) bool {
	return kv != nil && clientv3.LeaseID(kv.Lease) == l.id
}

// putBehind puts the key behind all others of the queue. The key must be new: a
// second put would hang it on another lease.
func (d *Driver) putBehind(ctx context.Context, l *lease, r drivers.Request) (place, error) {
	entry := d.keys.entry(r.Name, r.Owner)
	resp, err := d.client.Txn(ctx).
		If(absent(entry), absent(d.keys.grave(r.Name, r.Owner))).
		Then(
			clientv3.OpGet(d.keys.queue(r.Name), clientv3.WithLastCreate()...),
			clientv3.OpPut(entry, value(r), clientv3.WithLease(l.id)),
		).
		Else(clientv3.OpGet(entry)).
		Commit()
	if err != nil {
		return place{}, err
	}
	there := first(resp.Responses[0].GetResponseRange().Kvs)
	switch {
	case resp.Succeeded:
		return place{revision: resp.Header.Revision, ahead: there}, nil
	case ours(there, l):
		ahead, err := d.look(ctx, r, there.CreateRevision)
		return place{revision: there.CreateRevision, ahead: ahead}, err
	}
	return place{}, nil
}

// look reads who is now before our key in the queue: nil if nobody is and we
// hold. It fails if our key is gone, so that nobody is told to hold who does
// not.
func (d *Driver) look(ctx context.Context, r drivers.Request, revision int64) (*mvccpb.KeyValue, error) {
	before := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(revision-1), clientv3.WithKeysOnly())
	resp, _, err := insist(ctx, d.client, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return d.client.Txn(ctx).Then(
			clientv3.OpGet(d.keys.entry(r.Name, r.Owner), clientv3.WithKeysOnly()),
			clientv3.OpGet(d.keys.queue(r.Name), before...),
		).Commit()
	})
	if err != nil {
		return nil, err
	}
	own := first(resp.Responses[0].GetResponseRange().Kvs)
	if own == nil || own.CreateRevision != revision {
		return nil, errPlaceLost
	}
	return first(resp.Responses[1].GetResponseRange().Kvs), nil
}

// find reads what etcd has of a grant.
func (d *Driver) find(ctx context.Context, g drivers.Grant) (*hold, error) {
	resp, _, err := insist(ctx, d.client, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return d.client.Get(ctx, d.keys.entry(g.Name, g.Owner), clientv3.WithKeysOnly())
	})
	if err != nil {
		return nil, err
	}
	kv := first(resp.Kvs)
	if kv == nil {
		return nil, drivers.Lost(drivers.Taken, errKeyGone)
	}
	return &hold{lease: &lease{id: clientv3.LeaseID(kv.Lease)}, revision: kv.CreateRevision}, nil
}

// deleteKey deletes the key of a grant, if that is still the one.
func (d *Driver) deleteKey(ctx context.Context, g drivers.Grant, revision int64) (bool, error) {
	entry := d.keys.entry(g.Name, g.Owner)
	resp, err := d.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(entry), "=", revision)).
		Then(clientv3.OpDelete(entry)).
		Commit()
	return err == nil && resp.Succeeded, err
}

// bury deletes the key of an owner and defeats a request of that owner that is
// still on its way.
func (d *Driver) bury(ctx context.Context, g drivers.Grant) error {
	removed, tries, err := insist(ctx, d.client, func(ctx context.Context) (bool, error) {
		return d.replace(ctx, d.keys.entry(g.Name, g.Owner), d.keys.grave(g.Name, g.Owner))
	})
	if err != nil || removed || tries > 1 {
		return err
	}
	return drivers.Lost(drivers.Taken, errKeyGone)
}

func (d *Driver) replace(ctx context.Context, entry, grave string) (removed bool, err error) {
	for trial := 1; ; trial++ {
		id, err := d.leases.forGraves(ctx)
		if err != nil {
			return false, err
		}
		resp, err := d.client.Txn(ctx).
			Then(clientv3.OpDelete(entry), clientv3.OpPut(grave, "", clientv3.WithLease(id))).
			Commit()
		if err == nil {
			return resp.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
		}
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) || trial == maxLeaseTrials {
			return false, err
		}
		d.leases.forgetGraves(id)
	}
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}
