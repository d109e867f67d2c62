package pglock_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lockkit/lock/drivers"
)

// pooler starts a pgbouncer before the shared server.
func pooler(t *testing.T, mode string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("no pgbouncer")
		}
	}
	host, port, _ := net.SplitHostPort(server(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	config := filepath.Join(t.TempDir(), "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\npostgres = host=%s port=%s user=lockkit\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\n"+
		"unix_socket_dir =\nauth_type = any\npool_mode = %s\ndefault_pool_size = 4\n", host, port, own, mode)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", config}
	if os.Geteuid() == 0 {
		args = append([]string{"-u", "postgres"}, args...) // it refuses to run as root
	}
	cmd := exec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	addr := net.JoinHostPort("127.0.0.1", own)
	eventually(t, func() error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return addr
}

func TestATransactionPoolerIsRefusedForAdvisoryLocks(t *testing.T) {
	refused(t, rawURL(t, pooler(t, "transaction"), "lock_mode=advisory"), "lock_mode")
}

func TestASessionPoolerServesAdvisoryLocks(t *testing.T) {
	t.Parallel()
	addr := pooler(t, "session")
	a := openURL(t, rawURL(t, addr, "lock_mode=advisory", "lock_pooler=session"))
	b := open(t, "lock_mode=advisory")
	kept := acquire(t, a, request("kept"))
	r := request("n")
	r.TTL = 500 * time.Millisecond
	acquire(t, a, r)
	acquireSoon(t, b, request("n")) // after its time, though the pooler lives
	_, err := b.TryAcquire(t.Context(), request("kept"))
	wantErr(t, "the other lock", err, drivers.ErrHeld)
	release(t, a, kept)
	acquireSoon(t, b, request("kept"))
	renewalsKeep(t, a, b)
}

func TestATransactionPoolerServesRows(t *testing.T) {
	addr := pooler(t, "transaction")
	a, b := openURL(t, rawURL(t, addr)), openURL(t, rawURL(t, addr))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 8 {
		d := []drivers.Driver{a, b}[i%2]
		wg.Go(func() {
			for n := 0; n < 20; {
				g, err := d.TryAcquire(t.Context(), request("n"))
				if errors.Is(err, drivers.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !mu.TryLock() {
					t.Error("two holders at once")
					return
				}
				_, err = d.Renew(t.Context(), g)
				mu.Unlock()
				if err = errors.Join(err, d.Release(t.Context(), g)); err != nil {
					t.Error(err)
				}
				n++
			}
		})
	}
	wg.Wait()
}
