package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/pglock"
)

// patience bounds what should happen at once, on a machine that is busy.
const patience = 20 * time.Second

// bothModes are the settings of the two modes.
var bothModes = []string{"lock_mode=cas", "lock_mode=advisory"}

// shared is one server for all tests that do not break it.
var shared struct {
	sync.Mutex
	cluster *servers.Cluster
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Stop()
	}
	os.Exit(code)
}

// server is the address of the shared server.
func server(t *testing.T) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		c, err := servers.Start(context.Background(), servers.Postgres, servers.Options{})
		var missing *servers.MissingError
		if errors.As(err, &missing) && !servers.Required(servers.Postgres) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		shared.cluster = c
	}
	return shared.cluster.Addrs()[0]
}

// rawURL is the URL of a server, with a table for this test.
func rawURL(t *testing.T, addr string, settings ...string) string {
	all := append([]string{"lock_create=true", "lock_table=" + table(t), "sslmode=disable"}, settings...)
	return "postgres://" + servers.User + "@" + addr + "/" + servers.Database + "?" + strings.Join(all, "&")
}

var tables sync.Map // *testing.T to name

// table is the name of the test's own table.
func table(t *testing.T) string {
	name, _ := tables.LoadOrStore(t, "l_"+strings.ToLower(rand.Text()))
	return name.(string)
}

// open opens a driver on the shared server.
func open(t *testing.T, settings ...string) drivers.Driver {
	t.Helper()
	return openURL(t, rawURL(t, server(t), settings...))
}

func openURL(t *testing.T, raw string) drivers.Driver {
	t.Helper()
	d, err := tryOpen(t, raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func tryOpen(t *testing.T, raw string) (drivers.Driver, error) {
	t.Helper()
	u, err := drivers.ParseURL(raw)
	if err != nil {
		t.Fatal(err)
	}
	return drivers.Open(t.Context(), u)
}

// inBothModes runs a test for each mode with two drivers that share a table.
func inBothModes(t *testing.T, test func(t *testing.T, a, b drivers.Driver)) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) { test(t, open(t, mode), open(t, mode)) })
	}
}

func request(name string) drivers.Request {
	return drivers.Request{Name: name, Owner: rand.Text(), TTL: time.Minute, Note: "a note", Fenced: true}
}

func acquire(t *testing.T, d drivers.Driver, r drivers.Request) drivers.Grant {
	t.Helper()
	g, err := d.TryAcquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Name, err)
	}
	return g
}

// acquireSoon acquires what is about to become free.
func acquireSoon(t *testing.T, d drivers.Driver, r drivers.Request) drivers.Grant {
	t.Helper()
	var g drivers.Grant
	eventually(t, func() error {
		r.Owner = rand.Text()
		var err error
		g, err = d.TryAcquire(t.Context(), r)
		return err
	})
	return g
}

func release(t *testing.T, d drivers.Driver, g drivers.Grant) {
	t.Helper()
	if err := d.Release(t.Context(), g); err != nil {
		t.Fatalf("release %q: %v", g.Name, err)
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got %v, want %v", what, err, want)
	}
}

// client is a connection of the test's own.
func client(t *testing.T, addr string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), "postgres://"+servers.User+"@"+addr+"/"+servers.Database+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestOneHolderAtATime(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		g := acquire(t, a, request("n"))
		for who, d := range map[string]drivers.Driver{"the same driver": a, "another driver": b} {
			_, err := d.TryAcquire(t.Context(), request("n"))
			wantErr(t, who, err, drivers.ErrHeld)
		}
		release(t, a, g)
		release(t, b, acquire(t, b, request("n")))
	})
}

func TestTokensRise(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		var last drivers.Token
		for i := range 20 {
			d := []drivers.Driver{a, b}[i%2]
			g := acquire(t, d, request("n"))
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			release(t, d, g)
		}
	})
}

func TestTokensRiseUnderContention(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		var mu sync.Mutex // held while the lock is, so that two holders collide
		var last drivers.Token
		var wg sync.WaitGroup
		for i := range 8 {
			d := []drivers.Driver{a, b}[i%2]
			wg.Go(func() {
				for n := 0; n < 15; {
					g, err := d.TryAcquire(t.Context(), request("n"))
					if errors.Is(err, drivers.ErrHeld) {
						time.Sleep(time.Millisecond)
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
					if g.Token <= last {
						t.Errorf("token %d after %d", g.Token, last)
					}
					last = g.Token
					mu.Unlock()
					if err := d.Release(t.Context(), g); err != nil {
						t.Error(err)
					}
					n++
				}
			})
		}
		wg.Wait()
	})
}

func TestTokensRiseWhenTheLeaseHasRunOut(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		r := request("n")
		r.TTL = 300 * time.Millisecond
		first := acquire(t, a, r)
		second := acquireSoon(t, b, request("n"))
		if second.Token <= first.Token {
			t.Fatalf("token %d after %d", second.Token, first.Token)
		}
		if since := time.Since(first.Since); !first.Since.IsZero() && since < first.TTL {
			t.Fatalf("the lock was free after %v of %v", since, first.TTL)
		}
		_, err := a.Renew(t.Context(), first)
		wantErr(t, "renewal of a lease that has run out", err, drivers.ErrLost)
		wantErr(t, "its release", a.Release(t.Context(), first), drivers.ErrLost)
		if _, err := b.Renew(t.Context(), second); err != nil {
			t.Fatal("the successor was hurt:", err)
		}
	})
}

func TestReleaseNeverTouchesASuccessor(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		first := acquire(t, a, request("n"))
		release(t, a, first)
		for _, d := range []drivers.Driver{a, b} {
			second := acquire(t, d, request("n"))
			wantErr(t, "second release", a.Release(t.Context(), first), drivers.ErrLost)
			_, err := a.Renew(t.Context(), first)
			wantErr(t, "late renewal", err, drivers.ErrLost)
			if _, err := d.Renew(t.Context(), second); err != nil {
				t.Fatal("the successor was hurt:", err)
			}
			release(t, d, second)
		}
	})
}

func TestReleaseWorksWithoutState(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		g := acquire(t, a, request("n"))
		release(t, a, drivers.Grant{Name: g.Name, Owner: g.Owner})
		release(t, b, acquire(t, b, request("n")))
	})
}

func TestReleaseDefeatsALaterRequestOfTheSameOwner(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		acquireAndRelease := func(d drivers.Driver) { release(t, d, acquire(t, d, request("old"))) }
		acquireAndRelease(a)
		for _, name := range []string{"new", "old"} {
			r := request(name)
			wantErr(t, "release before the request", a.Release(t.Context(), drivers.Grant{Name: name, Owner: r.Owner}), drivers.ErrLost)
			_, err := a.TryAcquire(t.Context(), r)
			wantErr(t, "late request", err, drivers.ErrLost)
			release(t, b, acquire(t, b, request(name)))
		}
	})
}

func TestRenewSetsTheTimeToLive(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		r := request("n")
		r.TTL = 2 * time.Second
		g := acquire(t, a, r)
		for range 3 {
			ttl, err := a.Renew(t.Context(), g)
			if err != nil || ttl != g.TTL {
				t.Fatalf("renewed to %v, %v; want %v", ttl, err, g.TTL)
			}
		}
		if h := inspect(t, a, "n"); h.Remaining > g.TTL {
			t.Fatalf("%v are left of %v", h.Remaining, g.TTL)
		}
		g.TTL = time.Minute
		if ttl, err := a.Renew(t.Context(), g); err != nil || ttl < time.Minute {
			t.Fatalf("renewed to %v, %v; want a minute", ttl, err)
		}
		if h := inspect(t, a, "n"); h.Remaining < 30*time.Second {
			t.Fatalf("%v are left of a minute", h.Remaining)
		}
	})
}

func inspect(t *testing.T, d drivers.Driver, name string) drivers.Holder {
	t.Helper()
	h, err := d.(drivers.Inspector).Inspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestInspectTellsTheHolder(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		_, err := b.(drivers.Inspector).Inspect(t.Context(), "n")
		wantErr(t, "unknown name", err, drivers.ErrNotHeld)
		g := acquire(t, a, request("n"))
		for _, d := range []drivers.Driver{a, b} {
			if h := inspect(t, d, "n"); h.Owner != g.Owner || h.Note != "a note" || h.Token != g.Token {
				t.Fatalf("got %+v, want owner %s, token %d", h, g.Owner, g.Token)
			}
		}
		if h := inspect(t, a, "n"); h.Remaining <= 0 || h.Remaining > g.TTL {
			t.Fatalf("%v are left of %v", h.Remaining, g.TTL)
		}
		release(t, a, g)
		_, err = b.(drivers.Inspector).Inspect(t.Context(), "n")
		wantErr(t, "released name", err, drivers.ErrNotHeld)
	})
}

func TestNamesAreAnyBytes(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		long := strings.Repeat("\x00\xff/\\", 256)
		for _, name := range []string{"a", "A", "a/b", "a%2Fb", "\x00", "\xff\xfe", "{a}", " ", "ä", "☃", long, long[:1023] + "x"} {
			g := acquire(t, a, request(name)) // none blocks another
			_, err := b.TryAcquire(t.Context(), request(name))
			wantErr(t, fmt.Sprintf("%q", name), err, drivers.ErrHeld)
			if h := inspect(t, b, name); h.Owner != g.Owner {
				t.Fatalf("%q is held by %+v", name, h)
			}
		}
	})
}

func TestPrefixesKeepNamesApart(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			for _, prefix := range []string{"a", "a/b", "a%2Fb"} {
				acquire(t, open(t, mode, "lock_prefix="+strings.ReplaceAll(prefix, "%", "%25")), request("b/c"))
			}
			d := open(t, mode, "lock_prefix=a")
			acquire(t, d, request("c"))
			acquire(t, d, request("b%2Fc"))
		})
	}
}

func TestANameKeepsItsMode(t *testing.T) {
	url := rawURL(t, server(t))
	cas, advisory := openURL(t, url+"&lock_mode=cas"), openURL(t, url+"&lock_mode=advisory")
	conn := client(t, server(t))
	var last drivers.Token
	for _, mode := range []string{"cas", "advisory", "cas"} {
		d, other := cas, advisory
		if mode == "advisory" {
			d, other = advisory, cas
		}
		if last > 0 { // what the error says
			if _, err := conn.Exec(t.Context(), "UPDATE "+table(t)+" SET mode = $1", mode); err != nil {
				t.Fatal(err)
			}
		}
		g := acquire(t, d, request("n"))
		if g.Token <= last {
			t.Fatalf("%s: token %d after %d", mode, g.Token, last)
		}
		last = g.Token
		var wrong *drivers.ConfigError
		if _, err := other.TryAcquire(t.Context(), request("n")); !errors.As(err, &wrong) {
			t.Fatalf("%s: got %v, want a *ConfigError", mode, err)
		}
		wantErr(t, "release in the other mode", other.Release(t.Context(), drivers.Grant{Name: "n", Owner: g.Owner}), drivers.ErrLost)
		release(t, d, g)
	}
}

func TestTimesToLiveThatCannotBeKeptAreRefused(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, _ drivers.Driver) {
		for _, ttl := range []time.Duration{-1, 0, time.Microsecond, drivers.MaxTTL + 1} {
			r := request("n")
			r.TTL = ttl
			var wrong *drivers.ConfigError
			if _, err := a.TryAcquire(t.Context(), r); !errors.As(err, &wrong) {
				t.Errorf("%v: got %v, want a *ConfigError", ttl, err)
			}
		}
		for _, ttl := range []time.Duration{100 * time.Millisecond, 1234567 * time.Microsecond, 24 * time.Hour} {
			r := request(ttl.String())
			r.TTL = ttl
			// Soon: a session with a short time may end between two statements.
			if g := acquireSoon(t, a, r); g.TTL < ttl || g.TTL > ttl+ttl/7 {
				t.Errorf("asked for %v, got %v", ttl, g.TTL)
			}
		}
	})
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, b drivers.Driver) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := a.TryAcquire(ctx, request("n"))
		wantErr(t, "acquire", err, context.Canceled)
		release(t, b, acquire(t, b, request("n")))
	})
}

func TestCallsEndWithTheirContext(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := servers.For(t, servers.Postgres, servers.Options{})
			d := openURL(t, rawURL(t, c.Addrs()[0], mode))
			g := acquire(t, d, request("n"))
			if err := c.Nodes[0].Pause(); err != nil {
				t.Fatal(err)
			}
			late := request("late")
			for what, call := range map[string]func(context.Context) error{
				"acquire": func(ctx context.Context) error { _, err := d.TryAcquire(ctx, late); return err },
				"renew":   func(ctx context.Context) error { _, err := d.Renew(ctx, g); return err },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				wantErr(t, what, call(ctx), context.DeadlineExceeded)
				cancel()
			}
			reclaimed := make(chan error)
			go func() { reclaimed <- d.Release(t.Context(), drivers.Grant{Name: "late", Owner: late.Owner}) }()
			if err := c.Nodes[0].Resume(); err != nil {
				t.Fatal(err)
			}
			if err := <-reclaimed; err != nil && !errors.Is(err, drivers.ErrLost) {
				t.Fatal("reclaim:", err)
			}
			if _, err := d.Renew(t.Context(), g); err != nil {
				t.Fatal("the lock was lost with another one's context:", err)
			}
			other := openURL(t, rawURL(t, c.Addrs()[0], mode))
			release(t, other, acquireSoon(t, other, request("late")))
		})
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode, func(t *testing.T) {
			name := "app" + rand.Text()
			d := open(t, mode, "application_name="+name)
			for i := range 5 {
				r := request(fmt.Sprint(i))
				r.Fenced = i%2 == 0
				acquire(t, d, r)
			}
			inspect(t, d, "1")
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			_, err := d.TryAcquire(t.Context(), request("n"))
			wantErr(t, "acquire after close", err, drivers.ErrClosed)
			conn := client(t, server(t))
			eventually(t, func() error {
				n := query[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name)
				if n > 0 {
					return fmt.Errorf("%d connections are left", n)
				}
				return nil
			})
		})
	}
}

func TestCheckReportsEveryPromise(t *testing.T) {
	inBothModes(t, func(t *testing.T, a, _ drivers.Driver) {
		r, err := a.(drivers.Checker).Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Product != "postgres" || r.Version == "" || len(r.Servers) != 1 || r.Servers[0] != server(t) {
			t.Errorf("got %+v", r)
		}
		if len(r.Promises) != len(drivers.Guarantees) {
			t.Fatalf("got %d promises", len(r.Promises))
		}
		for i, p := range r.Promises {
			if p.Guarantee != drivers.Guarantees[i] || p.Made != a.Guarantees().Has(p.Guarantee) || p.Made == (p.Why != "") {
				t.Errorf("got %+v", p)
			}
		}
	})
}

var _ interface {
	drivers.Driver
	drivers.Watcher
	drivers.Inspector
	drivers.Checker
} = (*pglock.Advisory)(nil)
