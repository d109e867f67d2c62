package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// keeper owns what must not outlive this process: the directory of a cluster and its processes.
//
// Two things guard them when this process ends without a Stop. On Linux the kernel kills each
// server; it does so at the end of the *thread* that started it, so that one thread starts them all
// and lives as long as the keeper. And a shell, the reaper, reads a pipe whose other end only this
// process holds; at the end of file it kills the processes it was told of and removes the directory.
type keeper struct {
	dir    string
	starts chan func()
	reaper *reaper

	mu    sync.Mutex
	procs map[int]*process
}

// newKeeper makes the directory of a cluster whose servers are the given executable.
func newKeeper(p Product, executable, parent string) (*keeper, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, err
	}
	k := &keeper{
		dir:    filepath.Join(parent, "lockkit-"+string(p)+"-"+strings.ToLower(rand.Text())),
		starts: make(chan func()),
		procs:  map[int]*process{},
	}
	// The reaper first: there is no moment at which the directory exists and nobody would remove it.
	if k.reaper, err = startReaper(k.dir, executable); err != nil {
		return nil, err
	}
	go k.serveStarts()
	if err := makeDir(k.dir); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// makeDir lets other users enter but not list: Postgres may run as one of them. Mkdir alone obeys
// the umask.
func makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	return os.Chmod(dir, 0o711)
}

// serveStarts never unlocks: the thread ends with the goroutine.
func (k *keeper) serveStarts() {
	runtime.LockOSThread()
	for start := range k.starts {
		start()
	}
}

// close must be called when no process runs any more.
func (k *keeper) close() {
	close(k.starts)
	removeAll(k.dir)
	k.reaper.close()
}

// removeAll tries for a while: what a server left behind may still write.
func removeAll(dir string) {
	for range 100 {
		if os.RemoveAll(dir) == nil {
			return
		}
		time.Sleep(pollEvery)
	}
}

// command says how to start a process.
type command struct {
	argv  []string
	env   []string // besides the few that every server gets
	dir   string
	log   string // gets the output
	owner *owner // the user to run as, nil for this process's

	// finishes is a process that ends by itself and must not be killed. initdb would leave shared
	// memory behind that cannot be found.
	finishes bool
}

// start starts a process and has the reaper know of it.
func (k *keeper) start(c command) (*process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(environment(c.dir), c.env...)
	cmd.Stdout, cmd.Stderr = log, log // a file: nothing to copy, nobody to wait for
	cmd.SysProcAttr = attributes(c)

	result := make(chan error)
	k.starts <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(c.argv[0]), err)
	}
	p := &process{pid: cmd.Process.Pid, finishes: c.finishes}
	p.life, p.end = context.WithCancelCause(context.Background())
	k.note(p)
	go func() {
		err := cmd.Wait()
		k.forget(p)
		p.end(endOf(err))
	}()
	return p, nil
}

// run starts a process that ends by itself, and waits for that. No context breaks it off.
func (k *keeper) run(c command) error {
	c.finishes = true
	p, err := k.start(c)
	if err != nil {
		return err
	}
	defer time.AfterFunc(startLimit, p.kill).Stop()
	<-p.life.Done()
	return p.err()
}

// environment is small, so that variables such as ETCD_NAME or PGPORT of this process don't
// configure the servers.
func environment(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "LC_ALL=C"}
}

func (k *keeper) note(p *process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.procs[p.pid] = p
	k.reaper.tell(k.procs)
}

func (k *keeper) forget(p *process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.procs, p.pid)
	k.reaper.tell(k.procs)
}

// process is a child.
type process struct {
	pid      int
	finishes bool
	life     context.Context // lasts as long as the process; the cause of its end tells how that was
	end      context.CancelCauseFunc

	mu    sync.Mutex
	kills bool
}

var errExitedWell = errors.New("exit status 0")

func endOf(err error) error {
	if err == nil {
		return errExitedWell
	}
	return err
}

func (p *process) running() bool { return p.life.Err() == nil }

// err tells how the process failed, nil if it has not.
func (p *process) err() error {
	if err := context.Cause(p.life); !errors.Is(err, errExitedWell) {
		return err
	}
	return nil
}

// kill ends the process and its children and waits until they are gone.
func (p *process) kill() {
	p.mu.Lock()
	p.kills = true
	p.mu.Unlock()
	if p.running() {
		killTree(p.pid, p.life.Done())
	}
}

// asked tells whether the end was wanted.
func (p *process) asked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kills
}
