package redisnode

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
)

// A Node is the locks on one Redis server, without the promises of a [Driver]:
// a call ends at the deadline of its context but does not heed its
// cancellation, and nothing is known of the server. Package redlock is made of
// nodes; everybody else wants a Driver.
type Node struct {
	client *redis.Client
	addr   string
	prefix string
}

// NewNode makes a node. It sends nothing. A client whose settings break the
// rules is refused with a *drivers.ConfigError.
func NewNode(client *redis.Client, prefix string) (*Node, error) {
	if err := checkClient(client.Options()); err != nil {
		return nil, err
	}
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	return &Node{client: client, addr: client.Options().Addr, prefix: prefix}, nil
}

// Addr is the server's address.
func (n *Node) Addr() string { return n.addr }

// Acquire makes one attempt. The token is zero unless the request is Fenced.
func (n *Node) Acquire(ctx context.Context, r drivers.Request) (drivers.Token, error) {
	keys := n.keys(r.Name)
	args := append(make([]any, 0, 9), nil, nil, 2, keys.hold(), keys.grave(r.Owner))
	if r.Fenced {
		args[2] = 3
		args = append(args, keys.token())
	}
	args = append(args, r.Owner, r.Note, millis(r.TTL))
	cmd, err := acquireScript.run(ctx, n.client, args...)
	if errors.Is(err, redis.Nil) {
		return 0, drivers.ErrReleased
	}
	if err != nil {
		return 0, n.explain(ctx, err)
	}
	if token, granted := cmd.Val().(int64); granted {
		return drivers.Token(token), nil
	}
	holder, err := n.holder(cmd.Val())
	if err != nil {
		return 0, err
	}
	return 0, &drivers.HeldError{Holder: holder, Remaining: holder.Remaining}
}

// Renew sets the time to live of a grant. It returns a *drivers.LostError, with
// the reason Gone if nobody holds the name and Taken if somebody else does.
func (n *Node) Renew(ctx context.Context, name, owner string, ttl time.Duration) error {
	answer, err := n.number(ctx, renewScript, nil, nil, 1, n.keys(name).hold(), owner, millis(ttl))
	switch {
	case err != nil:
		return err
	case answer < 0:
		return drivers.Lost(drivers.Taken, nil)
	case answer == 0:
		return drivers.Lost(drivers.Gone, nil)
	}
	return nil
}

// Release ends a grant. If there is none it buries the owner for a minute, so
// that a request to acquire that arrives later is refused, and returns an
// error that matches ErrLost. With bury it does so in any case: several
// requests of the owner may be on their way.
func (n *Node) Release(ctx context.Context, name, owner string, bury bool) error {
	keys := n.keys(name)
	args := []any{nil, nil, 2, keys.hold(), keys.grave(owner), owner}
	if bury {
		args = append(args, "bury")
	}
	answer, err := n.number(ctx, releaseScript, args...)
	if err == nil && answer == 0 {
		err = drivers.Lost(drivers.Taken, nil)
	}
	return err
}

// Inspect tells who holds a name; the error matches ErrNotHeld if nobody does.
func (n *Node) Inspect(ctx context.Context, name string) (drivers.Holder, error) {
	cmd, err := inspectScript.run(ctx, n.client, nil, nil, 1, n.keys(name).hold())
	if errors.Is(err, redis.Nil) {
		return drivers.Holder{}, drivers.ErrNotHeld
	}
	if err != nil {
		return drivers.Holder{}, n.explain(ctx, err)
	}
	return n.holder(cmd.Val())
}

// number runs a script that answers with one.
func (n *Node) number(ctx context.Context, s script, args ...any) (int64, error) {
	cmd, err := s.run(ctx, n.client, args...)
	if err != nil {
		return 0, n.explain(ctx, err)
	}
	answer, ok := cmd.Val().(int64)
	if !ok {
		return 0, n.errorf("an unexpected answer: %v", cmd.Val())
	}
	return answer, nil
}

// holder reads {hold, ms left}.
func (n *Node) holder(reply any) (drivers.Holder, error) {
	pair, _ := reply.([]any)
	if len(pair) != 2 {
		return drivers.Holder{}, n.errorf("an unexpected answer: %v", reply)
	}
	hold, _ := pair[0].(string)
	left, _ := pair[1].(int64)
	owner, rest, _ := strings.Cut(hold, " ")
	number, note, _ := strings.Cut(rest, " ")
	token, _ := strconv.ParseInt(number, 10, 64)
	return drivers.Holder{
		Owner: owner, Note: note, Token: drivers.Token(token),
		Remaining: max(0, time.Duration(left)*time.Millisecond),
	}, nil
}

// keys are the keys of one name: prefix:kind:{name}. The braces make a hash
// tag: they live in one slot of a cluster. Neither prefix nor escaped name has
// braces, so distinct names, kinds and prefixes have distinct keys.
type keys struct{ prefix, tag string }

func (n *Node) keys(name string) keys {
	return keys{prefix: n.prefix, tag: ":{" + drivers.EscapeName(name) + "}"}
}

func (k keys) hold() string              { return k.prefix + ":hold" + k.tag }
func (k keys) token() string             { return k.prefix + ":token" + k.tag }
func (k keys) grave(owner string) string { return k.prefix + ":gone" + k.tag + ":" + owner }

// millis rounds up: a grant is never shorter than it was asked for.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
