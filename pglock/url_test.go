package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/pglock"
)

// refused opens a URL that must be refused with a *ConfigError about key.
func refused(t *testing.T, raw, key string) {
	t.Helper()
	u, err := drivers.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	d, err := drivers.Open(t.Context(), u)
	if err == nil {
		_ = d.Close()
	}
	var wrong *drivers.ConfigError
	if !errors.As(err, &wrong) || wrong.Key != key {
		t.Errorf("%s: got %v, want a *ConfigError about %s", raw, err, key)
	}
}

func TestBadSettingsAreRefusedWithoutAServer(t *testing.T) {
	const nowhere = "postgres://127.0.0.1:1/db?"
	for settings, key := range map[string]string{
		"lock_mode=session":                        "lock_mode",
		"lock_mod=cas":                             "lock_mod",
		"lock_max_held=3":                          "lock_max_held", // of the other mode
		"lock_mode=advisory&lock_max_held=0":       "lock_max_held",
		"lock_mode=advisory&lock_pooler=pgbouncer": "lock_pooler",
		"lock_create=yes":                          "lock_create",
		"lock_table=a;b":                           "lock_table",
		"lock_table=a.b.c":                         "lock_table",
		"lock_prefix=" + strings.Repeat("x", 65):   "lock_prefix",
		"password=hunter2":                         "password",
		"sslpassword=hunter2":                      "sslpassword",
		"sslmode=never":                            "url",
		"pool_max_conns=0":                         "url",
	} {
		refused(t, nowhere+settings, key)
	}
	refused(t, "postgres://a:x@127.0.0.1:1,b:x@127.0.0.1:2/db", "user")
}

func TestNobodyListening(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	for _, mode := range bothModes {
		_, err = tryOpen(t, rawURL(t, addr, mode))
		wantErr(t, mode, err, drivers.ErrUnavailable)
		if !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: no address in %v", mode, err)
		}
	}
}

// listen answers each connection with serve.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer conn.Close(); serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestASilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	addr := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	var wg sync.WaitGroup
	for _, mode := range bothModes {
		wg.Go(func() {
			began := time.Now()
			u, _ := drivers.ParseURL("postgres://" + addr + "/db?sslmode=disable&" + mode)
			_, err := drivers.Open(context.Background(), u)
			if !errors.Is(err, drivers.ErrUnavailable) || !strings.Contains(err.Error(), addr) {
				t.Errorf("%s: got %v", mode, err)
			}
			if took := time.Since(began); took > patience {
				t.Errorf("%s: took %v", mode, took)
			}
		})
	}
	wg.Wait()
}

func TestAnotherProductIsRefused(t *testing.T) {
	addr := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 100))
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
	})
	for _, mode := range bothModes {
		refused(t, "postgres://"+addr+"/db?sslmode=disable&"+mode, "host")
	}
}

func TestAWrongPasswordIsRefusedAndNeverShown(t *testing.T) {
	const right, wrong = "s3cr et'\\@/", "wr0ng:?'\\@/%"
	c := servers.For(t, servers.Postgres, servers.Options{Password: right})
	with := func(password, mode string) string {
		return "postgres://" + servers.User + ":" + url.PathEscape(strings.ReplaceAll(password, "@", "\x00")) + "@" + c.Addrs()[0] +
			"/postgres?sslmode=disable&lock_create=true&" + mode
	}
	for _, mode := range bothModes {
		raw := func(password string) string { return strings.ReplaceAll(with(password, mode), "%00", "%40") }
		for _, bad := range []string{raw(wrong), raw(wrong) + "&sslrootcert=/missing", raw(wrong) + "&nonsense=1", raw(wrong) + "&connect_timeout=x"} {
			_, err := tryOpen(t, bad)
			var config *drivers.ConfigError
			if !errors.As(err, &config) {
				t.Fatalf("%s: got %v, want a *ConfigError", mode, err)
			}
			for _, secret := range []string{wrong, url.PathEscape(wrong), url.QueryEscape(wrong), "wr0ng"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%s: the password is in %v", mode, err)
				}
			}
		}
		d := openURL(t, raw(right))
		release(t, d, acquire(t, d, request(mode)))
	}
}

func TestAMissingDatabaseIsRefused(t *testing.T) {
	for _, mode := range bothModes {
		refused(t, strings.Replace(rawURL(t, server(t), mode), "/postgres?", "/nowhere?", 1), "database")
	}
}

func TestAMissingTableIsRefusedWithItsMend(t *testing.T) {
	for _, mode := range bothModes {
		_, err := tryOpen(t, strings.Replace(rawURL(t, server(t), mode), "lock_create=true", "lock_create=false", 1))
		var wrong *drivers.ConfigError
		if !errors.As(err, &wrong) || wrong.Key != "lock_table" || !strings.Contains(wrong.Fix, "lock_create=true") || !strings.Contains(wrong.Fix, "CREATE TABLE") {
			t.Fatalf("%s: got %v", mode, err)
		}
	}
	conn := client(t, server(t))
	if _, err := conn.Exec(t.Context(), pglock.Schema(table(t))); err != nil {
		t.Fatal(err)
	}
	openURL(t, strings.Replace(rawURL(t, server(t)), "lock_create=true", "lock_create=false", 1))
}

func TestATableThatForgetsIsRefused(t *testing.T) {
	conn := client(t, server(t))
	if _, err := conn.Exec(t.Context(), strings.Replace(pglock.Schema(table(t)), "CREATE TABLE", "CREATE UNLOGGED TABLE", 1)); err != nil {
		t.Fatal(err)
	}
	refused(t, rawURL(t, server(t)), "lock_table")
}

func TestAForeignTableIsRefused(t *testing.T) {
	conn := client(t, server(t))
	if _, err := conn.Exec(t.Context(), "CREATE TABLE "+table(t)+" (name text)"); err != nil {
		t.Fatal(err)
	}
	for _, mode := range bothModes {
		refused(t, rawURL(t, server(t), mode), "lock_table")
	}
}

func TestAUserWithoutRightsIsRefused(t *testing.T) {
	openURL(t, rawURL(t, server(t)))
	conn := client(t, server(t))
	nobody := "nobody" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE "+nobody+" LOGIN"); err != nil {
		t.Fatal(err)
	}
	for _, mode := range bothModes {
		refused(t, strings.Replace(rawURL(t, server(t), mode), "//lockkit@", "//"+nobody+"@", 1), "user")
	}
}

func TestManyMayCreateTheTableAtOnce(t *testing.T) {
	raw := rawURL(t, server(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			u, _ := drivers.ParseURL(raw)
			d, err := drivers.Open(t.Context(), u)
			if err != nil {
				t.Error(err)
				return
			}
			_ = d.Close()
		})
	}
	wg.Wait()
}
