package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

var redisRecipe = recipe{
	ports:          1,
	find:           findRedis,
	programVersion: func(p program) string { return askVersion(p.path, "--version") },
	prepare:        prepareRedis,
	argv:           redisArgv,
	probe:          probeRedis,
}

func findRedis() (program, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, ok := onPath(name); ok {
			return program{path: path, executable: follow(path)}, nil
		}
	}
	return program{}, missing(Redis, "redis-server on PATH", "redis-server")
}

func redisArgv(n *Node) []string {
	return append([]string{n.cluster.prog.path, n.conf}, n.cluster.opts.Args...)
}

// prepareRedis writes a file: in the arguments everybody could read the password.
func prepareRedis(_ context.Context, n *Node) error {
	appendOnly := "no"
	if n.cluster.opts.Durable {
		appendOnly = "yes"
	}
	lines := []string{
		"bind 127.0.0.1",
		"port " + strconv.Itoa(n.ports[0]),
		"dir " + quote(n.dir),
		`save ""`, // no snapshots: what is kept is what Durable says
		"appendonly " + appendOnly,
		"appendfsync always",
		"daemonize no",
	}
	if n.cluster.opts.Password != "" {
		lines = append(lines, "requirepass "+quote(n.cluster.opts.Password))
	}
	return os.WriteFile(n.conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// quote writes an argument as redis.conf wants it.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// probeRedis asks PING and INFO. A server that wants a password which we don't know does serve.
func probeRedis(ctx context.Context, addr, password string) (string, error) {
	conn, hangUp, err := dialProbe(ctx, addr)
	if err != nil {
		return "", err
	}
	defer hangUp()
	r := bufio.NewReader(conn)
	if password != "" {
		if _, err := askRedis(conn, r, "AUTH", password); err != nil {
			return "", err
		}
	}
	switch _, err := askRedis(conn, r, "PING"); {
	case err != nil && strings.HasPrefix(err.Error(), "NOAUTH"):
		return "", nil
	case err != nil:
		return "", err
	}
	info, err := askRedis(conn, r, "INFO", "server")
	if err != nil {
		return "", nil //nolint:nilerr // the version is not worth a failure: INFO may be renamed
	}
	_, after, _ := strings.Cut(info, "redis_version:")
	version, _, _ := strings.Cut(after, "\r\n")
	return version, nil
}

// askRedis sends one command and returns its simple or bulk reply.
func askRedis(w io.Writer, r *bufio.Reader, args ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return "", err
	}
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	switch {
	case strings.HasPrefix(line, "+"):
		return line[1:], nil
	case strings.HasPrefix(line, "$"):
		return readBulk(r, line[1:])
	}
	return "", errors.New(strings.TrimPrefix(line, "-"))
}

func readBulk(r *bufio.Reader, length string) (string, error) {
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > 1<<20 {
		return "", fmt.Errorf("a reply of length %q", length)
	}
	text := make([]byte, n)
	_, err = io.ReadFull(r, text)
	return string(text), err
}
