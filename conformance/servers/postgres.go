package servers

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

var postgresRecipe = recipe{
	ports:          1,
	find:           findPostgres,
	programVersion: func(p program) string { return askVersion(p.path, "-V") },
	prepare:        preparePostgres,
	argv:           postgresArgv,
	probe:          probePostgres,
}

// Where distributions put the programs, which are often not on PATH.
var postgresBins = []string{
	"usr/lib/postgresql/*/bin/postgres",
	"usr/pgsql-*/bin/postgres",
	"opt/homebrew/opt/postgresql*/bin/postgres",
	"usr/local/opt/postgresql*/bin/postgres",
}

// findPostgres wants initdb beside the server: both must be of one version. A link on PATH is
// followed to where the other programs of that version are.
func findPostgres() (program, error) {
	var candidates []string
	if path, ok := onPath("postgres"); ok {
		candidates = append(candidates, follow(path))
	}
	for _, pattern := range postgresBins {
		candidates = append(candidates, glob(pattern)...)
	}
	for _, path := range candidates {
		if _, err := os.Stat(initdb(path)); err != nil {
			continue
		}
		user, err := postgresUser()
		if err != nil {
			return program{}, err
		}
		return program{path: path, executable: path, owner: user}, nil
	}
	return program{}, missing(Postgres, "postgres and initdb on PATH and in "+filepath.Join(root, postgresBins[0]), "postgresql")
}

func initdb(postgres string) string { return filepath.Join(filepath.Dir(postgres), "initdb") }

// postgresUser is needed because Postgres refuses to run as root.
func postgresUser() (*owner, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	user, err := lookupOwner("postgres", "nobody")
	if err != nil {
		return nil, &MissingError{Postgres, "it refuses to run as root and there is no user postgres", "run as another user"}
	}
	return user, nil
}

func preparePostgres(_ context.Context, n *Node) error {
	args := []string{
		initdb(n.cluster.prog.path), "-D", n.dir, "-U", User, "-E", "UTF8", "--locale=C",
		"--no-sync", // the data of a test need not survive the machine
	}
	auth := "trust"
	if password := n.cluster.opts.Password; password != "" {
		auth = "scram-sha-256"
		args = append(args, "--pwfile", n.conf)
		if err := os.WriteFile(n.conf, []byte(password+"\n"), 0o600); err != nil {
			return err
		}
		defer os.Remove(n.conf)
	}
	args = append(args, "-A", auth)
	if err := n.give(n.dir, n.conf); err != nil {
		return err
	}
	err := n.cluster.keeper.run(command{argv: args, dir: n.dir, log: n.log, owner: n.cluster.prog.owner})
	if err != nil {
		return fmt.Errorf("initdb: %w; the end of its output:\n%s", err, n.tail())
	}
	return nil
}

// give makes files the property of the user that the server runs as.
func (n *Node) give(files ...string) error {
	user := n.cluster.prog.owner
	if user == nil {
		return nil
	}
	for _, file := range files {
		if err := chown(file, user); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

func postgresArgv(n *Node) []string {
	args := []string{
		n.cluster.prog.path, "-D", n.dir, "-p", strconv.Itoa(n.ports[0]),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		"-c", "max_connections=300",
		// In the data directory, where it is removed with it; the default is /dev/shm.
		"-c", "dynamic_shared_memory_type=mmap",
	}
	return append(args, n.cluster.opts.Args...)
}

// sqlstateStarting is the error of a server that is not yet, or no longer, ready.
const sqlstateStarting = "57P03"

// probePostgres sends a start-up packet. Any answer but "the database system is starting up" means
// that the server serves: also a wrong user, and the question for a password.
func probePostgres(ctx context.Context, addr, _ string) (string, error) {
	conn, hangUp, err := dialProbe(ctx, addr)
	if err != nil {
		return "", err
	}
	defer hangUp()
	if _, err := conn.Write(startupPacket()); err != nil {
		return "", err
	}
	version := ""
	for {
		kind, body, err := readMessage(conn)
		if err != nil {
			return "", err
		}
		switch kind {
		case 'E':
			if bytes.Contains(body, []byte("C"+sqlstateStarting+"\x00")) {
				return "", fmt.Errorf("SQLSTATE %s", sqlstateStarting)
			}
			return "", nil
		case 'R':
			if binary.BigEndian.Uint32(body) != 0 {
				return "", nil // it asks for a password
			}
		case 'S':
			if value, ok := strings.CutPrefix(string(body), "server_version\x00"); ok {
				version = dotted.FindString(value)
			}
		case 'Z':
			_, _ = conn.Write([]byte{'X', 0, 0, 0, 4})
			return version, nil
		}
	}
}

func startupPacket() []byte {
	const protocol = 3 << 16
	body := binary.BigEndian.AppendUint32(nil, protocol)
	for _, s := range []string{"user", User, "database", Database, ""} {
		body = append(append(body, s...), 0)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

func readMessage(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length < 4 || length > 1<<16 {
		return 0, nil, fmt.Errorf("a message of %d bytes", length)
	}
	body = make([]byte, length-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

// removeSharedMemory removes the segment that a killed Postgres leaves in the system: the seventh
// line of its postmaster.pid is "key id". A server that starts again with its data does it itself.
func removeSharedMemory(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	if fields := strings.Fields(lines[6]); len(fields) == 2 {
		_ = exec.Command("ipcrm", "-m", fields[1]).Run() // it may be gone
	}
}
