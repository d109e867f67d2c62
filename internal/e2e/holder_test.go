//go:build unix

// Package e2e_test shows on every backend what a lock is for, with real servers
// and with holders that are processes of their own: this test binary, run
// again.
package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkit/lock"
	_ "github.com/lockkit/lock/drivers/all"
)

// The environment of a holder.
const (
	roleEnv = "LOCKKIT_E2E_ROLE"
	urlEnv  = "LOCKKIT_E2E_URL"
)

const name = "e2e/shared"

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// play is what a holder's process does.
func play(role string, args []string) error {
	ctx := context.Background()
	b, err := lock.Open(ctx, os.Getenv(urlEnv))
	if err != nil {
		return err
	}
	defer b.Close()
	l := b.Lock(name, &lock.LockOptions{Note: "e2e " + role})
	if role == "increment" {
		return increments(ctx, l, args[0], args[1], args[2])
	}
	return hold(ctx, l)
}

// increments adds to the number in a file, read, add and write, with nothing
// but the lock to protect it.
func increments(ctx context.Context, l lock.Lock, file, workers, each string) error {
	w, err1 := strconv.Atoi(workers)
	n, err2 := strconv.Atoi(each)
	if err1 != nil || err2 != nil {
		return fmt.Errorf("bad arguments %q %q", workers, each)
	}
	errs := make(chan error, w)
	for range w {
		go func() {
			for range n {
				if err := lock.Do(ctx, l, func(context.Context) error { return addOne(file) }); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range w {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func addOne(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600)
}

// hold takes the lock and says so, says when it is lost, and releases it when
// its input ends, saying what Release returned.
func hold(ctx context.Context, l lock.Lock) error {
	lease, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	fmt.Println("held")
	go func() {
		<-lease.Done()
		if errors.Is(lease.Err(), lock.ErrLost) {
			fmt.Println("ended:", lease.Err())
		}
	}()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	fmt.Println("released:", lease.Release(ctx))
	return nil
}

// A holder is a process that plays hold.
type holder struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
	ended func()
}

func startHolder(t *testing.T, url string) *holder {
	t.Helper()
	cmd := command(t, url, "hold")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &holder{t: t, cmd: cmd, stdin: stdin, lines: make(chan string, 16)}
	go func() {
		defer close(h.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	h.ended = sync.OnceFunc(func() {
		h.signal(syscall.SIGCONT)
		stdin.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(h.ended)
	return h
}

// expect waits for the next line of the holder and returns it.
func (h *holder) expect(prefix string) string {
	h.t.Helper()
	select {
	case line, ok := <-h.lines:
		if !ok {
			h.t.Fatalf("the holder ended, while waiting for %q", prefix)
		}
		if !strings.HasPrefix(line, prefix) {
			h.t.Fatalf("the holder says %q, want %q", line, prefix)
		}
		return line
	case <-time.After(time.Minute):
		h.t.Fatalf("the holder does not say %q", prefix)
	}
	return ""
}

func (h *holder) signal(s syscall.Signal) { _ = h.cmd.Process.Signal(s) }

// release has the holder release its lease.
func (h *holder) release() {
	h.t.Helper()
	if err := h.stdin.Close(); err != nil {
		h.t.Fatal(err)
	}
}

func command(t *testing.T, url, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, urlEnv+"="+url)
	cmd.Stderr = os.Stderr
	return cmd
}
