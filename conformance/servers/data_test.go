//go:build unix

package servers_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/conformance/servers"
)

// store writes one thing to a server and reads it again, by the product's own protocol.
type store struct {
	put func(ctx context.Context, n *servers.Node) error
	has func(ctx context.Context, n *servers.Node) (bool, error)
}

var stores = map[servers.Product]store{
	servers.Redis:     {putRedis, hasRedis},
	servers.Etcd:      {putEtcd, hasEtcd},
	servers.ZooKeeper: {putZooKeeper, hasZooKeeper},
	servers.Postgres:  {putPostgres, hasPostgres},
}

// ask sends one line of the inline protocol and returns the first line of the answer.
func ask(ctx context.Context, n *servers.Node, line string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", n.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := fmt.Fprint(conn, line); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func putRedis(ctx context.Context, n *servers.Node) error {
	reply, err := ask(ctx, n, "SET lockkit here\r\n")
	if err == nil && reply != "+OK\r\n" {
		err = errors.New(reply)
	}
	return err
}

func hasRedis(ctx context.Context, n *servers.Node) (bool, error) {
	reply, err := ask(ctx, n, "EXISTS lockkit\r\n")
	return reply == ":1\r\n", err
}

func postEtcd(ctx context.Context, n *servers.Node, path string, in any, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addr()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

var etcdKey = base64.StdEncoding.EncodeToString([]byte("lockkit"))

func putEtcd(ctx context.Context, n *servers.Node) error {
	return postEtcd(ctx, n, "/v3/kv/put", map[string]string{"key": etcdKey, "value": etcdKey}, new(any))
}

func hasEtcd(ctx context.Context, n *servers.Node) (bool, error) {
	var reply struct{ Count string }
	err := postEtcd(ctx, n, "/v3/kv/range", map[string]string{"key": etcdKey}, &reply)
	return reply.Count == "1", err
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// withZooKeeper waits for a session, which the library does not do by itself.
func withZooKeeper(ctx context.Context, n *servers.Node, f func(*zk.Conn) error) error {
	conn, events, err := zk.Connect([]string{n.Addr()}, 4*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return f(conn)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func putZooKeeper(ctx context.Context, n *servers.Node) error {
	return withZooKeeper(ctx, n, func(conn *zk.Conn) error {
		_, err := conn.CreateContainer("/lockkit", nil, zk.FlagContainer, zk.WorldACL(zk.PermAll))
		if err != nil {
			return fmt.Errorf("a container node: %w", err)
		}
		_, err = conn.CreateTTL("/lockkit-ttl", nil, zk.FlagTTL, zk.WorldACL(zk.PermAll), time.Hour)
		return err
	})
}

func hasZooKeeper(ctx context.Context, n *servers.Node) (has bool, err error) {
	err = withZooKeeper(ctx, n, func(conn *zk.Conn) error {
		if _, err := conn.Sync("/"); err != nil {
			return err
		}
		has, _, err = conn.Exists("/lockkit-ttl")
		return err
	})
	return has, err
}

func withPostgres(ctx context.Context, n *servers.Node, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, "postgres://lockkit@"+n.Addr()+"/postgres?sslmode=disable")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(conn)
}

func putPostgres(ctx context.Context, n *servers.Node) error {
	return withPostgres(ctx, n, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create table lockkit ()")
		return err
	})
}

func hasPostgres(ctx context.Context, n *servers.Node) (has bool, err error) {
	err = withPostgres(ctx, n, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select to_regclass('lockkit') is not null").Scan(&has)
	})
	return has, err
}

func put(t *testing.T, c *servers.Cluster, n *servers.Node) {
	t.Helper()
	if err := stores[c.Product].put(t.Context(), n); err != nil {
		t.Fatalf("%s: write: %v", n, err)
	}
}

func mustHave(t *testing.T, c *servers.Cluster, n *servers.Node, want bool) {
	t.Helper()
	has, err := stores[c.Product].has(t.Context(), n)
	if err != nil {
		t.Fatalf("%s: read: %v", n, err)
	}
	if has != want {
		t.Errorf("%s: the data are there: %v, want %v", n, has, want)
	}
}
