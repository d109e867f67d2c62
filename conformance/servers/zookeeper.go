package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A node listens for clients, for followers and for elections.
const zookeeperPorts = 3

var zookeeperRecipe = recipe{
	ports:          zookeeperPorts,
	find:           findZooKeeper,
	programVersion: zookeeperVersion,
	prepare:        prepareZooKeeper,
	argv:           zookeeperArgv,
	probe:          probeZooKeeper,
	leads: func(ctx context.Context, n *Node) (bool, error) {
		text, err := askZooKeeper(ctx, n.addr)
		return strings.Contains(text, "Mode: leader") || strings.Contains(text, "Mode: standalone"), err
	},
}

// The jar of Debian names the jars it needs; Homebrew's stands beside them.
var zookeeperJars = []string{
	"usr/share/java/zookeeper.jar",
	"opt/homebrew/opt/zookeeper/libexec/lib/zookeeper-[0-9]*.jar",
	"usr/local/opt/zookeeper/libexec/lib/zookeeper-[0-9]*.jar",
}

func findZooKeeper() (program, error) {
	java, ok := onPath("java")
	if !ok {
		return program{}, missing(ZooKeeper, "java on PATH", "default-jre-headless libzookeeper-java")
	}
	for _, pattern := range zookeeperJars {
		if jars := glob(pattern); len(jars) > 0 {
			return program{path: jars[0], launcher: java, executable: follow(java)}, nil
		}
	}
	return program{}, missing(ZooKeeper, filepath.Join(root, zookeeperJars[0]), "libzookeeper-java default-jre-headless")
}

// zookeeperVersion is in the name of the jar, or on Debian in that of a link to it.
func zookeeperVersion(p program) string {
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(p.path), "zookeeper-[0-9]*.jar"))
	for _, name := range names {
		if follow(name) == follow(p.path) {
			return dotted.FindString(filepath.Base(name))
		}
	}
	return ""
}

// classPath adds what the jar does not name: a logger that writes to standard error on Debian, all
// the jars beside it elsewhere.
func classPath(jar string) string {
	dir := filepath.Dir(jar)
	if filepath.Base(jar) == "zookeeper.jar" {
		return jar + ":" + filepath.Join(dir, "slf4j-simple.jar")
	}
	return filepath.Join(dir, "*")
}

func zookeeperArgv(n *Node) []string {
	args := []string{
		n.cluster.prog.launcher,
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-XX:-UsePerfData", // would leave a file in the temporary directory
		"-Djava.net.preferIPv4Stack=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", classPath(n.cluster.prog.path),
	}
	// Before the class: the server itself takes nothing but its file.
	args = append(args, n.cluster.opts.Args...)
	return append(args, "org.apache.zookeeper.server.quorum.QuorumPeerMain", n.conf)
}

// prepareZooKeeper writes the configuration and the member's number. With a tick of 200 ms clients
// can have sessions of 0.4 to 4 s. A follower that lags by syncLimit ticks, 2 s, is dropped, and
// one that starts may take initLimit ticks, 10 s: the machine may be busy.
func prepareZooKeeper(_ context.Context, n *Node) error {
	lines := []string{
		"tickTime=200",
		"initLimit=50",
		"syncLimit=10",
		"dataDir=" + n.dir,
		"clientPort=" + strconv.Itoa(n.ports[0]),
		"clientPortAddress=127.0.0.1",
		"maxClientCnxns=0",
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
		"extendedTypesEnabled=true", // nodes with a TTL
	}
	if members := n.cluster.opts.Members; members > 1 {
		for i := range members {
			ports := n.cluster.ports.list[i*zookeeperPorts:]
			lines = append(lines, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i+1, ports[1], ports[2]))
		}
		if err := os.WriteFile(filepath.Join(n.dir, "myid"), []byte(strconv.Itoa(n.index+1)), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(n.conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// zookeeperReadLimit is short because a word that is sent while the server boots is never answered.
const zookeeperReadLimit = 250 * time.Millisecond

func probeZooKeeper(ctx context.Context, addr, _ string) (string, error) {
	text, err := askZooKeeper(ctx, addr)
	if err != nil {
		return "", err
	}
	if !strings.Contains(text, "Mode: ") {
		return "", fmt.Errorf("not serving: %.60q", text)
	}
	return dotted.FindString(text), nil
}

// askZooKeeper returns the answer to srvr.
func askZooKeeper(ctx context.Context, addr string) (string, error) {
	conn, hangUp, err := dialProbe(ctx, addr)
	if err != nil {
		return "", err
	}
	defer hangUp()
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return "", err
	}
	if err := conn.SetReadDeadline(time.Now().Add(zookeeperReadLimit)); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	if err == nil && len(text) == 0 {
		err = errors.New("closed without an answer")
	}
	return string(text), err
}
