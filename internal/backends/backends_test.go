package backends_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/internal/backends"
)

func find(t *testing.T, name string) backends.Backend {
	t.Helper()
	b, err := backends.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTheBackendsComeInTheOrderOfTheTable(t *testing.T) {
	want := "memory redis redlock etcd zookeeper postgres-advisory postgres-cas"
	if got := strings.Join(backends.Names(), " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAnUnknownNameIsRefusedWithTheKnownOnes(t *testing.T) {
	if _, err := backends.Find("consul"); err == nil || !strings.Contains(err.Error(), "postgres-cas") {
		t.Errorf("%v", err)
	}
}

func TestAURLNamesItsBackend(t *testing.T) {
	for raw, want := range map[string]string{
		"mem://":                               "memory",
		"redis://h":                            "redis",
		"rediss://h":                           "redis",
		"redlock://a,b,c":                      "redlock",
		"etcds://h":                            "etcd",
		"zk://h":                               "zookeeper",
		"postgres://h/db":                      "postgres-cas",
		"postgresql://h/db?lock_mode=cas":      "postgres-cas",
		"postgres://h/db?lock_mode=advisory":   "postgres-advisory",
		"someone-elses://h?their_setting=true": "someone-elses",
	} {
		if b, err := backends.Of(raw); err != nil || b.Name != want {
			t.Errorf("%s names %q (%v), want %s", raw, b.Name, err, want)
		}
	}
}

func TestAURLOfAnotherBackendIsRefused(t *testing.T) {
	for _, c := range []struct{ name, raw, key string }{
		{"redis", "etcd://h", "scheme"},
		{"redlock", "redis://h", "scheme"},
		{"redis", "nonsense", "url"},
		{"postgres-cas", "postgres://h/db?lock_mode=advisory", "lock_mode"},
		{"etcd", "etcd://h?lock_ttl=soon", "lock_ttl"},
		{"etcd", "etcd://h?lock_need=luck", "lock_need"},
	} {
		_, err := backends.At(find(t, c.name), c.raw)
		mustBlame(t, err, c.key)
	}
}

func TestTheModeOfPostgresFollowsFromTheBackend(t *testing.T) {
	target, err := backends.At(find(t, "postgres-advisory"), "postgres://u@"+closedPort(t, "127.0.0.1")+"/db")
	if err != nil {
		t.Fatal(err)
	}
	// lock_max_held is a setting of that mode only, so that it shows the mode.
	with, err := backends.At(find(t, "postgres-advisory"), "postgres://u@"+closedPort(t, "127.0.0.1")+"/db?lock_max_held=7")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []*backends.Target{target, with} {
		if _, err := one.Open(t.Context()); !errors.Is(err, drivers.ErrUnavailable) {
			t.Errorf("%v", err)
		}
	}
}

func TestATargetShowsNoPassword(t *testing.T) {
	target, err := backends.At(find(t, "redis"), "redis://u:p%40ssword@h.invalid:1")
	if err != nil {
		t.Fatal(err)
	}
	if got := target.String(); got != "redis://h.invalid:1" {
		t.Errorf("%s", got)
	}
	for _, text := range []string{"AUTH u p@ssword failed", "at u:p%40ssword@h.invalid"} {
		if got := target.Redact(text); strings.Contains(got, "ssword") {
			t.Errorf("%s", got)
		}
	}
}

func TestEveryWaiverIsOfACheckThatExists(t *testing.T) {
	ids := map[string]bool{}
	for _, check := range conformance.Checks() {
		ids[check.ID] = true
	}
	for _, b := range backends.All() {
		for id, why := range b.Waivers() {
			if !ids[id] || why == "" {
				t.Errorf("%s waives %q: %q", b.Name, id, why)
			}
		}
	}
}

func TestAMissingServerIsAMissingError(t *testing.T) {
	for _, b := range backends.All() {
		if b.Product != servers.Redis { // the others are looked for at fixed paths too
			continue
		}
		t.Setenv("PATH", t.TempDir())
		t.Setenv("LOCKTEST_REDIS_ADDR", "")
		_, err := backends.Start(t.Context(), b, backends.Options{})
		var missing *servers.MissingError
		if !errors.As(err, &missing) || missing.Hint == "" {
			t.Errorf("%s: %v", b.Name, err)
		}
		if _, err := b.Look(); !errors.As(err, &missing) {
			t.Errorf("%s: %v", b.Name, err)
		}
	}
}

// start starts a backend as compare --quick does.
func start(t *testing.T, name string) *backends.Target {
	t.Helper()
	target, err := backends.Start(t.Context(), find(t, name), backends.Options{Quick: true, Logf: t.Logf})
	var missing *servers.MissingError
	if errors.As(err, &missing) && !servers.Required(missing.Product) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func TestEveryBackendIsStartedOpenedAndAsked(t *testing.T) {
	for _, b := range backends.All() {
		t.Run(b.Name, func(t *testing.T) {
			target := start(t, b.Name)
			r, err := target.Meet(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if r.Product == "" || r.Version == "" || len(r.Promises) != len(drivers.Guarantees) {
				t.Errorf("%+v", r)
			}
			if c := target.Config(); (c.Restart != nil) != (target.Source == backends.Started && b.Product != "") {
				t.Error("a server can be restarted if, and only if, we have started it")
			}
		})
	}
}

func TestAGivenServerIsNotRestarted(t *testing.T) {
	target, err := backends.At(find(t, "redis"), "redis://h.invalid")
	if err != nil {
		t.Fatal(err)
	}
	if target.Config().Restart != nil {
		t.Error("it would be stopped")
	}
}

// A client of ZooKeeper keeps its session alive by itself; without a way to cut
// it off nothing could be seen to expire.
func TestASilencedClientIsNotHeardUntilItIsUndone(t *testing.T) {
	target := start(t, "zookeeper")
	if _, err := target.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := target.Config()
	d, err := cfg.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	g, err := d.TryAcquire(t.Context(), drivers.Request{Name: "a", Owner: "o", TTL: cfg.TTL})
	if err != nil {
		t.Fatal(err)
	}
	undo, err := cfg.Silence(d)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := d.Renew(short, g); err == nil {
		t.Error("a silenced client reached the server")
	}
	undo()
	long, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for err = errors.New("not asked"); err != nil && !errors.Is(err, drivers.ErrLost) && long.Err() == nil; {
		_, err = d.Renew(long, g)
	}
	if err != nil && !errors.Is(err, drivers.ErrLost) {
		t.Errorf("after the silence: %v", err)
	}
}

func TestOnlyAClientThatWasOpenedForTheSuiteCanBeSilenced(t *testing.T) {
	target := start(t, "zookeeper")
	d, err := target.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := target.Config().Silence(d); err == nil {
		t.Error("it claims to have silenced a client that it does not know")
	}
}

func TestARelayPassesBytesAndKeepsThemBack(t *testing.T) {
	to := echo(t)
	r, err := backends.NewRelay(to)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	conn, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mustEcho(t, conn, "before")
	r.Hold()
	if _, err := conn.Write([]byte("during")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes passed", n)
	}
	r.Resume()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, len("during"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "during" {
		t.Errorf("%q %v", got, err)
	}
	r.Close()
	if _, err := conn.Read(got); err == nil {
		t.Error("the connection outlives its relay")
	}
}

func mustEcho(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("%q %v", got, err)
	}
}

// echo is the address of a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
	return l.Addr().String()
}

func TestAQuickComparisonTakesFewerServers(t *testing.T) {
	b := find(t, "etcd")
	if quick, full := b.Needs(true), b.Needs(false); quick != "1 etcd" || full != "3 etcd" {
		t.Errorf("%s, %s", quick, full)
	}
}

func TestAServerThatWasStartedAloneIsNotWarnedOf(t *testing.T) {
	const alone, other = "127.0.0.1:2181 stands alone: locks and tokens are gone with its disk", "fsync is off"
	for _, c := range []struct {
		source  string
		servers int
		warning string
		want    bool
	}{
		{backends.Started, 1, alone, true},
		{backends.Started, 3, alone, false},
		{backends.Given, 1, alone, false},
		{backends.Started, 1, other, false},
	} {
		if got := backends.Foreseen(c.source, c.servers, c.warning); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
