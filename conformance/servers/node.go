package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// Node is one server. Its methods may be called by several goroutines; those that change the
// process wait for each other.
//
// Pause, Resume, Kill, Restart and RestartEmpty return [ErrNotOurs] for a given server and
// [ErrStopped] after [Cluster.Stop].
type Node struct {
	cluster *Cluster
	index   int
	addr    string
	ports   []int
	dir     string // the data; the server's working directory
	conf    string
	log     string

	mu      sync.Mutex
	proc    *process // the last one started
	retired bool
	joining bool // etcd: the member joins a cluster that exists
	version string
}

// Addr returns host:port. It stays the same over restarts.
func (n *Node) Addr() string { return n.addr }

// Dir returns the directory with the server's data, which is also its working directory; empty for
// a given server.
func (n *Node) Dir() string { return n.dir }

// Pid returns the process, 0 if none runs or the server is a given one. For Postgres it is the
// postmaster; each session has a process of its own.
func (n *Node) Pid() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.runs() {
		return 0
	}
	return n.proc.pid
}

// Pause stops the process, for Postgres with all its sessions (SIGSTOP), and returns when it
// stands. Its connections stay open and the kernel goes on accepting new ones.
func (n *Node) Pause() error {
	return n.withProcess("pause", pauseTree)
}

// Resume continues a paused process (SIGCONT). What clients have sent meanwhile is then executed.
func (n *Node) Resume() error {
	return n.withProcess("resume", resumeTree)
}

// Kill ends the process at once (SIGKILL), for Postgres with all its sessions, and returns when it
// is gone. The data stay as they are on disk. Killing what does not run is no error.
func (n *Node) Kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ours(); err != nil {
		return err
	}
	n.kill()
	return nil
}

// Restart kills the process if it runs, starts it again on the same port with the same data, and
// returns when it answers.
func (n *Node) Restart(ctx context.Context) error {
	return n.restart(ctx, nil)
}

// RestartEmpty is Restart with the data wiped. A member of an etcd cluster is removed from it and
// added again, as an operator would do, for which the other members must be able to agree; a
// ZooKeeper member copies the others' data.
func (n *Node) RestartEmpty(ctx context.Context) error {
	return n.restart(ctx, func(ctx context.Context) error {
		if err := n.wipe(ctx); err != nil || n.cluster.recipe.rejoin == nil {
			return err
		}
		return n.cluster.recipe.rejoin(ctx, n)
	})
}

// restart calls between, if there is one, when the process is gone.
func (n *Node) restart(ctx context.Context, between func(context.Context) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ours(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(n.cluster.life, func() { stop(ErrStopped) })()
	n.kill()
	if between != nil {
		if err := between(ctx); err != nil {
			return fmt.Errorf("servers: %s: %w", n, err)
		}
	}
	if err := n.launch(ctx); err != nil {
		return fmt.Errorf("servers: %s: %w", n, err)
	}
	return nil
}

// String names the node in messages.
func (n *Node) String() string {
	return fmt.Sprintf("%s node %d at %s", n.cluster.Product, n.index, n.addr)
}

// withProcess calls f with the process, which must run.
func (n *Node) withProcess(what string, f func(pid int) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ours(); err != nil {
		return err
	}
	if !n.runs() {
		return fmt.Errorf("servers: %s: nothing runs to %s", n, what)
	}
	if err := f(n.proc.pid); err != nil {
		return fmt.Errorf("servers: %s: %s: %w", n, what, err)
	}
	return nil
}

func (n *Node) ours() error {
	switch {
	case n.cluster.keeper == nil:
		return fmt.Errorf("servers: %s: %w", n, ErrNotOurs)
	case n.retired:
		return fmt.Errorf("servers: %s: %w", n, ErrStopped)
	}
	return nil
}

func (n *Node) runs() bool { return n.proc != nil && n.proc.running() }

// kill needs the lock.
func (n *Node) kill() {
	if n.proc != nil {
		n.proc.kill()
	}
}

// retire ends the node for good.
func (n *Node) retire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.retired = true
	n.kill()
	removeSharedMemory(n.dir)
}

// wipe empties the data directory of a node that does not run.
func (n *Node) wipe(ctx context.Context) error {
	removeSharedMemory(n.dir)
	if err := os.RemoveAll(n.dir); err != nil {
		return err
	}
	n.joining = false
	return n.makeData(ctx)
}

func (n *Node) makeData(ctx context.Context) error {
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return err
	}
	return n.cluster.recipe.prepare(ctx, n)
}

// launch starts the process and returns when it answers.
func (n *Node) launch(ctx context.Context) error {
	proc, err := n.cluster.keeper.start(command{
		argv:  n.cluster.recipe.argv(n),
		env:   n.cluster.opts.Env,
		dir:   n.dir,
		log:   n.log,
		owner: n.cluster.prog.owner,
	})
	if err != nil {
		return err
	}
	n.proc = proc
	if err := n.await(ctx, proc); err != nil {
		proc.kill()
		return n.explain(err)
	}
	n.cluster.watchers.Go(func() { n.watch(proc) })
	return nil
}

// watch reports a server that ends by itself: a test that fails because of it should say so.
func (n *Node) watch(p *process) {
	<-p.life.Done()
	if !p.asked() {
		n.cluster.opts.Logf("servers: %s ended by itself: %v\n%s", n, context.Cause(p.life), n.tail())
	}
}

var errExited = errors.New("the server ended before it was ready")

// await asks until the server answers. The process is nil if the server is a given one.
func (n *Node) await(ctx context.Context, p *process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if p != nil {
		defer context.AfterFunc(p.life, func() { cancel(errExited) })()
	}
	for {
		version, err := n.cluster.recipe.probe(ctx, n.addr, n.cluster.opts.Password)
		if p != nil && !p.running() {
			return errExited // even if something answered: then it is not ours
		}
		if err == nil {
			n.version = version
			return nil
		}
		if stop := pause(ctx, pollEvery); errors.Is(stop, errExited) {
			return stop
		} else if stop != nil {
			return fmt.Errorf("not ready: %w (last answer: %w)", stop, err)
		}
	}
}

// explain adds the end of the server's output to an error of its start.
func (n *Node) explain(err error) error {
	tail := n.tail()
	if errors.Is(err, errExited) && saysPortTaken(tail) {
		err = errPortTaken
	}
	return fmt.Errorf("%s: %w; the end of its output:\n%s", n, err, tail)
}

// tailLength is enough for the lines in which a server says why it ends.
const tailLength = 4096

func (n *Node) tail() string {
	text, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	text = text[max(0, len(text)-tailLength):]
	return redact(strings.TrimSpace(string(text)), n.cluster.opts.Password)
}

// redact keeps a password out of messages: a server may print the line of its configuration that it
// does not like.
func redact(text, password string) string {
	if password == "" {
		return text
	}
	asQuoted := strings.Trim(quote(password), `"`)
	return strings.NewReplacer(password, "xxxxx", asQuoted, "xxxxx").Replace(text)
}
