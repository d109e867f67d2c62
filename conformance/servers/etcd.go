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
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// EtcdVersion is the etcd that scripts/setup-servers builds.
const EtcdVersion = "v3.7.3"

// A node listens for clients and for its peers.
const etcdPorts = 2

var etcdRecipe = recipe{
	ports:          etcdPorts,
	find:           findEtcd,
	programVersion: func(p program) string { return askVersion(p.path, "--version") },
	prepare:        func(context.Context, *Node) error { return nil },
	argv:           etcdArgv,
	probe:          probeEtcd,
	rejoin:         rejoinEtcd,
	leads:          leadsEtcd,
}

// findEtcd prefers the current server to that of the distribution, which may be years old.
func findEtcd() (program, error) {
	if path := os.Getenv("LOCKTEST_ETCD_BIN"); path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			return program{}, &MissingError{Etcd, "LOCKTEST_ETCD_BIN: " + err.Error(), "unset it, or name an etcd"}
		}
		return program{path: found, executable: follow(found)}, nil
	}
	built := filepath.Join(cacheDir(), "etcd-"+EtcdVersion, "etcd")
	if path, err := exec.LookPath(built); err == nil {
		return program{path: path, executable: follow(path)}, nil
	}
	if path, ok := onPath("etcd"); ok {
		return program{path: path, executable: follow(path)}, nil
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
	client, peer := etcdURL(n.addr), etcdURL(hostPort(n.ports[1]))
	return []string{
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
		"--heartbeat-interval", "20",
		"--election-timeout", "200",
		// Otherwise a member can be added only when all have been connected for five seconds.
		"--strict-reconfig-check=false",
		"--logger", "zap",
		"--log-level", "error",
	}
}

func etcdName(index int) string { return fmt.Sprintf("node%d", index) }

func etcdURL(addr string) string { return "http://" + addr }

func etcdMembers(c *Cluster) string {
	var members []string
	for i := range c.opts.Members {
		peer := hostPort(c.ports.list[i*etcdPorts+1])
		members = append(members, etcdName(i)+"="+etcdURL(peer))
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
	for {
		err := readmittedByAny(ctx, n)
		if err == nil {
			n.joining = true
			return nil
		}
		if pause(ctx, pollEvery) != nil {
			return fmt.Errorf("the other members do not let it in again: %w", err)
		}
	}
}

func readmittedByAny(ctx context.Context, n *Node) error {
	var errs []error
	for _, other := range n.cluster.Nodes {
		if other == n {
			continue
		}
		err := readmitEtcd(ctx, other.addr, n)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func readmitEtcd(ctx context.Context, by string, n *Node) error {
	id, err := etcdMemberID(ctx, by, etcdName(n.index))
	if err != nil {
		return err
	}
	if id != "" {
		if err := askEtcd(ctx, http.MethodPost, by, "/v3/cluster/member/remove", map[string]string{"ID": id}, nil); err != nil {
			return err
		}
	}
	peers := map[string][]string{"peerURLs": {etcdURL(hostPort(n.ports[1]))}}
	return askEtcd(ctx, http.MethodPost, by, "/v3/cluster/member/add", peers, nil)
}

// etcdMemberID returns nothing for a member that is not known by that name.
func etcdMemberID(ctx context.Context, by, name string) (string, error) {
	var list struct {
		Members []struct{ ID, Name string }
	}
	if err := askEtcd(ctx, http.MethodPost, by, "/v3/cluster/member/list", struct{}{}, &list); err != nil {
		return "", err
	}
	for _, m := range list.Members {
		if m.Name == name {
			return m.ID, nil
		}
	}
	return "", nil
}

// etcdLimit is longer than that of other probes: a change of the members waits for their agreement.
const etcdLimit = 5 * time.Second

// askEtcd sends and receives JSON: etcd offers its gRPC calls that way too.
func askEtcd(ctx context.Context, method, addr, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, etcdLimit)
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
