package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// EtcdVersion is the etcd that scripts/setup-servers builds.
const EtcdVersion = "v3.7.3"

// A node listens for clients and for its peers.
const etcdPorts = 2

var etcdRecipe = recipe{
	ports:          etcdPorts,
	find:           findEtcd,
	programVersion: func(p program) string { return askVersion(p.path, "--version") },
	prepare:        prepareEtcd,
	argv:           etcdArgv,
	probe:          probeEtcd,
	rejoin:         rejoinEtcd,
	leads:          leadsEtcd,
}

// findEtcd prefers the current server to that of the distribution, which may be years old.
func findEtcd() (program, error) {
	if path := os.Getenv("LOCKTEST_ETCD_BIN"); path != "" {
		found, ok := onPath(path)
		if !ok {
			return program{}, &MissingError{Etcd, "no program is " + path + ", which LOCKTEST_ETCD_BIN names", "unset it, or name an etcd"}
		}
		return program{path: found, executable: follow(found)}, nil
	}
	built := filepath.Join(cacheDir(), "etcd-"+EtcdVersion, "etcd")
	for _, name := range []string{built, "etcd"} {
		if path, ok := onPath(name); ok {
			return program{path: path, executable: follow(path)}, nil
		}
	}
	return program{}, missing(Etcd, built+" and etcd on PATH", "etcd-server")
}

// cacheDir is where scripts/setup-servers keeps what it builds.
func cacheDir() string {
	if dir := os.Getenv("LOCKKIT_CACHE"); dir != "" {
		return dir
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "lockkit")
	}
	return filepath.Join(os.Getenv("HOME"), ".cache", "lockkit")
}

func etcdArgv(n *Node) []string {
	state := "new"
	if n.joining {
		state = "existing"
	}
	heartbeat, election := etcdTimes(n.cluster.opts.Members)
	client, peer := etcdURL(n.addr), etcdURL(n.peerAddr())
	args := []string{
		n.cluster.prog.path,
		"--name", etcdName(n.index),
		"--data-dir", n.dir,
		"--listen-client-urls", client,
		"--advertise-client-urls", client,
		"--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer,
		"--initial-cluster", etcdMembers(n.cluster),
		"--initial-cluster-state", state,
		"--initial-cluster-token", filepath.Base(n.cluster.keeper.dir),
		"--heartbeat-interval", heartbeat,
		"--election-timeout", election,
		// Otherwise a member can be added only when all have been connected for five seconds.
		"--strict-reconfig-check=false",
		"--logger", "zap",
		"--log-level", "error",
	}
	return append(args, n.cluster.opts.Args...)
}

// etcdTimes are in milliseconds. A busy disk or machine should not change the leader in the middle of
// a test; but leases of one second must be possible, which they are up to an election time-out of
// two thirds of it. A single member can lose no election and starts sooner with short times.
func etcdTimes(members int) (heartbeat, election string) {
	if members == 1 {
		return "20", "200"
	}
	return "50", "500"
}

// prepareEtcd has each member but the first wait for the one before. A new member asks the others
// whether it is known, and one that has opened its port but does not serve it yet keeps it waiting
// for a second: started at the same time, three of them would often take two seconds.
func prepareEtcd(ctx context.Context, n *Node) error {
	if n.index == 0 || n.proc != nil {
		return nil
	}
	before := n.cluster.Nodes[n.index-1]
	for {
		err := askEtcd(ctx, http.MethodGet, before.peerAddr(), "/version", nil, nil)
		if err == nil {
			return nil
		}
		if stop := pause(ctx, pollEvery); stop != nil {
			return fmt.Errorf("%s: waiting for %s: %w (last answer: %w)", n, before, stop, err)
		}
	}
}

func (n *Node) peerAddr() string { return hostPort(n.ports[1]) }

func etcdName(index int) string { return fmt.Sprintf("node%d", index) }

func etcdURL(addr string) string { return "http://" + addr }

func etcdMembers(c *Cluster) string {
	var members []string
	for i, n := range c.Nodes {
		members = append(members, etcdName(i)+"="+etcdURL(n.peerAddr()))
	}
	return strings.Join(members, ",")
}

// probeEtcd asks for /health, which says true only where there is a leader.
func probeEtcd(ctx context.Context, addr, _ string) (string, error) {
	var health struct{ Health string }
	if err := askEtcd(ctx, http.MethodGet, addr, "/health", nil, &health); err != nil {
		return "", err
	}
	if health.Health != "true" {
		return "", errors.New("not healthy")
	}
	var version struct{ Etcdserver string }
	err := askEtcd(ctx, http.MethodGet, addr, "/version", nil, &version)
	return version.Etcdserver, err
}

func leadsEtcd(ctx context.Context, n *Node) (bool, error) {
	var status struct {
		Header struct {
			MemberID string `json:"member_id"`
		}
		Leader string
	}
	err := askEtcd(ctx, http.MethodPost, n.addr, "/v3/maintenance/status", struct{}{}, &status)
	return err == nil && status.Leader != "" && status.Leader == status.Header.MemberID, err
}

// rejoinEtcd removes a member that has lost its data and adds it again. A member may not come back
// under its old identity: it has promised things that it no longer knows.
func rejoinEtcd(ctx context.Context, n *Node) error {
	if n.cluster.opts.Members == 1 {
		return nil
	}
	err := untilEtcd(ctx, n, false, func(leader, id string) error {
		return askEtcd(ctx, http.MethodPost, leader, "/v3/cluster/member/remove", map[string]string{"ID": id}, nil)
	})
	if err != nil {
		return err
	}
	n.joining = true
	return untilEtcd(ctx, n, true, func(leader, _ string) error {
		peers := map[string][]string{"peerURLs": {etcdURL(n.peerAddr())}}
		return askEtcd(ctx, http.MethodPost, leader, "/v3/cluster/member/add", peers, nil)
	})
}

// untilEtcd repeats a change until the list of members does or does not have the node. The leader is
// asked for it: the others may send it to a leader that is gone. Also a leader ignores a change while
// it is new, so that an attempt may fail without an answer.
func untilEtcd(ctx context.Context, n *Node, listed bool, change func(leader, id string) error) error {
	for {
		leader, err := n.cluster.Leader(ctx)
		if err != nil {
			return err
		}
		id, err := etcdMemberAt(ctx, leader.addr, etcdURL(n.peerAddr()))
		if err == nil && (id != "") == listed {
			return nil
		}
		if err == nil {
			err = change(leader.addr, id)
		}
		if stop := pause(ctx, pollEvery); stop != nil {
			return fmt.Errorf("the other members do not agree on a change of members: %w (last answer: %w)", stop, err)
		}
	}
}

// etcdMemberAt returns the member with that peer URL, or nothing.
func etcdMemberAt(ctx context.Context, by, peer string) (id string, err error) {
	var list struct {
		Members []struct {
			ID       string
			PeerURLs []string
		}
	}
	err = askEtcd(ctx, http.MethodPost, by, "/v3/cluster/member/list", struct{}{}, &list)
	for _, m := range list.Members {
		if slices.Contains(m.PeerURLs, peer) {
			return m.ID, err
		}
	}
	return "", err
}

// askEtcd sends and receives JSON: etcd offers its gRPC calls that way too.
func askEtcd(ctx context.Context, method, addr, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, etcdURL(addr)+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	// One connection for each question: nothing is left open.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.200s", path, resp.Status, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
