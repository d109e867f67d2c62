//go:build unix

package servers_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkit/lock/conformance/servers"
)

func TestAnotherPortIsTakenWhenOneIsLost(t *testing.T) {
	for _, p := range servers.Products() {
		t.Run(string(p), func(t *testing.T) {
			stolen, restore := servers.StealPorts(1)
			defer restore()
			c := servers.For(t, p, servers.Options{})
			put(t, c, c.Nodes[0])
			if stolen.Load() != 1 {
				t.Error("no port was taken away: the test has not looked")
			}
		})
	}
}

func TestPortsAreLostForGoodAfterSomeTries(t *testing.T) {
	if _, err := servers.Look(servers.Redis); err != nil {
		t.Skip(err)
	}
	stolen, restore := servers.StealPorts(100)
	defer restore()
	_, err := servers.Start(t.Context(), servers.Redis, servers.Options{})
	if err == nil || !strings.Contains(err.Error(), "taken the port") || stolen.Load() < 2 {
		t.Errorf("%d tries: %v", stolen.Load(), err)
	}
}

// Nobody may get the port of a server that is down: not a listener that wants any port, nor one that
// wants this one without SO_REUSEADDR (the choice of other processes of this kind).
func TestPortOfAKilledServerIsKept(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can")
	}
	c := servers.For(t, servers.Redis, servers.Options{})
	if err := c.Nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(c.Addrs()[0])
	if conn, err := net.Dial("tcp", c.Addrs()[0]); err == nil {
		conn.Close()
		t.Error("the port of a killed server accepts connections")
	}
	var number int
	fmt.Sscan(port, &number)
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(socket)
	err = syscall.Bind(socket, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("bind of the port of a killed server: %v", err)
	}
}

func TestErrorOfAStartHasTheServersWords(t *testing.T) {
	wrong := map[servers.Product]string{
		servers.Redis:     "--no-such-option",
		servers.Etcd:      "--no-such-option",
		servers.ZooKeeper: "--no-such-option",
		servers.Postgres:  "--no-such-option=1",
	}
	for p, arg := range wrong {
		if _, err := servers.Look(p); err != nil {
			continue
		}
		_, err := servers.Start(t.Context(), p, servers.Options{Args: []string{arg}})
		if err == nil || !strings.Contains(err.Error(), "o-such-option") && !strings.Contains(err.Error(), "no_such_option") {
			t.Errorf("%s: %v", p, err)
		}
	}
}

const secret = "s3cret with 'quotes\" and \\"

func TestRedisWantsItsPassword(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Redis, servers.Options{Password: secret, Logf: noSecret(t)})
	if reply, err := ask(t.Context(), c.Nodes[0], "PING\r\n"); err != nil || !strings.HasPrefix(reply, "-NOAUTH") {
		t.Errorf("without a password: %q, %v", reply, err)
	}
	right := fmt.Sprintf("*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n", len(secret), secret)
	if reply, err := ask(t.Context(), c.Nodes[0], right); err != nil || reply != "+OK\r\n" {
		t.Errorf("with the password: %q, %v", reply, err)
	}
	mustHide(t, c)
}

func TestPostgresWantsItsPassword(t *testing.T) {
	t.Parallel()
	c := servers.For(t, servers.Postgres, servers.Options{Password: secret, Logf: noSecret(t)})
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
	_, err = pgx.Connect(t.Context(), strings.Replace(c.URL(), "s3cret", "guess", 1))
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "28P01" {
		t.Errorf("with a wrong password: %v", err)
	}
	mustHide(t, c)
	sessionsMustPauseToo(t, c)
}

func noSecret(t *testing.T) func(string, ...any) {
	return func(format string, args ...any) {
		line := fmt.Sprintf(format, args...)
		t.Log(line)
		if strings.Contains(line, secret) {
			t.Error("the log has the password")
		}
	}
}

// mustHide looks where other users of the machine can.
func mustHide(t *testing.T, c *servers.Cluster) {
	t.Helper()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.Nodes[0].Pid()))
	if err != nil && runtime.GOOS == "linux" {
		t.Error(err)
	}
	if strings.Contains(string(args), "s3cret") {
		t.Error("the arguments have the password")
	}
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(c.Nodes[0].Dir()), "*"))
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if text, _ := os.ReadFile(file); strings.Contains(string(text), "s3cret") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the password and mode %v", file, info.Mode())
		}
	}
}

func TestErrorOfAStartHidesThePassword(t *testing.T) {
	t.Parallel()
	if _, err := servers.Look(servers.Redis); err != nil {
		t.Skip(err)
	}
	// The server prints the wrong line of its configuration.
	const word = "tell-nobody"
	_, err := servers.Start(t.Context(), servers.Redis, servers.Options{Password: word, Args: []string{"--no-such-option", word}})
	if err == nil || strings.Contains(err.Error(), word) {
		t.Error(err)
	}
}

// sessionsMustPauseToo is about the processes that the postmaster has made.
func sessionsMustPauseToo(t *testing.T, c *servers.Cluster) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := c.Nodes[0].Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Errorf("a session answered while the server was paused: %v", err)
	case <-time.After(within):
	}
	if err := c.Nodes[0].Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

func TestServerThatEndsByItselfIsReported(t *testing.T) {
	t.Parallel()
	lines := make(chan string, 10)
	c := servers.For(t, servers.Redis, servers.Options{Logf: func(format string, args ...any) {
		lines <- fmt.Sprintf(format, args...)
	}})
	<-lines // the start
	if err := syscall.Kill(c.Nodes[0].Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; !strings.Contains(line, "ended by itself") || !strings.Contains(line, "Redis") {
		t.Error(line)
	}
	if err := c.Nodes[0].Restart(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEnvironmentAndArgumentsReachTheServer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	t.Setenv("ETCD_NAME", "not-for-us")
	c := servers.For(t, servers.Etcd, servers.Options{Args: []string{"--max-txn-ops", "200"}, Env: []string{"LOCKKIT_TEST=yes"}})
	pid := c.Nodes[0].Pid()
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if !strings.Contains(string(env), "LOCKKIT_TEST=yes") || strings.Contains(string(env), "ETCD_NAME") {
		t.Errorf("environment %q", env)
	}
	if !strings.Contains(string(args), "--max-txn-ops\x00200") {
		t.Errorf("arguments %q", args)
	}
	if cwd != c.Nodes[0].Dir() {
		t.Errorf("working directory %s, want %s", cwd, c.Nodes[0].Dir())
	}
}
