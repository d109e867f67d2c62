//go:build unix

package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/internal/backends"
)

// onEveryBackend runs a test on servers of its own for each backend that
// excludes processes.
func onEveryBackend(t *testing.T, test func(t *testing.T, url string, ttl time.Duration)) {
	for _, b := range backends.All() {
		t.Run(b.Name, func(t *testing.T) {
			if b.OneProcess {
				t.Skip("its locks are for one process by design; TestNothingIsLostInOneProcess covers it")
			}
			target, err := backends.Start(t.Context(), b, backends.Options{Quick: true, Logf: t.Logf})
			var missing *servers.MissingError
			if errors.As(err, &missing) && !servers.Required(b.Product) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(target.Close)
			url, ttl := target.URL(minTTL)
			test(t, url, ttl)
		})
	}
}

// minTTL outlasts a machine that is busy with something else; ZooKeeper's
// sessions last 4 s at most with the ticks of the test servers.
const minTTL = 3 * time.Second

const (
	workers = "4" // in each of 2 processes
	each    = "250"
	total   = "2000"
)

func counterFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "counter")
	if err := os.WriteFile(file, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func wantCount(t *testing.T, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("the counter is at %q, %v; want %s", got, err, want)
	}
}

func TestTwoProcessesLoseNoIncrement(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url string, _ time.Duration) {
		file := counterFile(t)
		cmds := []*exec.Cmd{}
		for range 2 {
			cmd := command(t, url, "increment", file, workers, each)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			cmds = append(cmds, cmd)
		}
		for _, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
		wantCount(t, file, total)
	})
}

func TestNothingIsLostInOneProcess(t *testing.T) {
	file := counterFile(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			b, err := lock.Open(t.Context(), "mem://e2e")
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			if err := increments(t.Context(), b.Lock(name, nil), file, workers, each); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	wantCount(t, file, total)
}

func TestAStoppedHolderLearnsOfItsLossAndFreesNobody(t *testing.T) {
	onEveryBackend(t, func(t *testing.T, url string, ttl time.Duration) {
		t.Parallel() // it waits for most of the time
		first := startHolder(t, url)
		first.expect("held")

		// It renews: nobody gets the lock for more than twice its TTL.
		b, err := lock.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		for end := time.Now().Add(2*ttl + ttl/2); time.Now().Before(end); {
			if _, err := b.Lock(name, nil).TryAcquire(t.Context()); !errors.Is(err, lock.ErrHeld) {
				t.Fatalf("while it is held and renewed: %v", err)
			}
			time.Sleep(ttl / 10)
		}

		// It stops, and another takes over.
		first.signal(syscall.SIGSTOP)
		second := startHolder(t, url)
		second.expect("held")

		// It goes on, learns of its loss, and its release frees nobody.
		first.signal(syscall.SIGCONT)
		first.expect("ended: lease lost")
		first.release()
		if line := first.expect("released: "); !strings.Contains(line, "lease lost") {
			t.Errorf("the late release says %q", line)
		}
		first.ended()
		if _, err := b.Lock(name, nil).TryAcquire(t.Context()); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("after the late release of the first holder: %v", err)
		}
		second.release()
		second.expect("released: <nil>")
		second.ended()
		if l, err := b.Lock(name, nil).Acquire(t.Context()); err != nil {
			t.Errorf("after both are gone: %v", err)
		} else if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
