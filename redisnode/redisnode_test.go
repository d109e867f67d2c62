package redisnode_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redisnode"
)

// long is a time to live that no test outlasts.
const long = time.Minute

// start starts a server of the test's own.
func start(t testing.TB, args ...string) *servers.Node {
	t.Helper()
	return servers.For(t, servers.Redis, servers.Options{Args: args}).Nodes[0]
}

// open opens a driver by URL and closes it with the test.
func open(t testing.TB, rawURL string) drivers.Driver {
	t.Helper()
	d, err := tryOpen(t.Context(), rawURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func tryOpen(ctx context.Context, rawURL string) (drivers.Driver, error) {
	u, err := drivers.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return drivers.Open(ctx, u)
}

// clientOptions are such as New wants them.
func clientOptions(addr string) *redis.Options {
	return &redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true}
}

// dial is a client beside the driver's.
func dial(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(clientOptions(addr))
	t.Cleanup(func() { client.Close() })
	return client
}

func request(name string, ttl time.Duration) drivers.Request {
	return drivers.Request{Name: name, Owner: newOwner(), TTL: ttl, Note: "a note", Fenced: true}
}

func newOwner() string { return "owner" + strconv.FormatUint(rand.Uint64(), 36) }

func acquire(t testing.TB, d drivers.Driver, r drivers.Request) drivers.Grant {
	t.Helper()
	g, err := d.TryAcquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func release(t testing.TB, d drivers.Driver, g drivers.Grant) {
	t.Helper()
	if err := d.Release(t.Context(), g); err != nil {
		t.Fatal(err)
	}
}

// keys lists the keys of one kind: "hold", "token", "gone".
func keys(t testing.TB, client *redis.Client, kind string) []string {
	t.Helper()
	found, err := client.Keys(context.WithoutCancel(t.Context()), "lock:"+kind+":*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within 10 s: %s", what)
}

func TestHeldNameIsRefusedWithItsHolder(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	g := acquire(t, d, request("name", long))
	before := keys(t, client, "*")

	_, err := d.TryAcquire(t.Context(), request("name", long))
	var held *drivers.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("got %v, want a HeldError", err)
	}
	h := held.Holder
	if h.Owner != g.Owner || h.Note != "a note" || h.Token != g.Token || held.Remaining <= 0 || held.Remaining > long {
		t.Errorf("the holder is %+v with %v left, want that of %+v", h, held.Remaining, g)
	}
	if after := keys(t, client, "*"); len(after) != len(before) {
		t.Errorf("a refused request left keys behind: %q", after)
	}
}

func TestInspectTellsTheHolder(t *testing.T) {
	d := open(t, "redis://"+start(t).Addr()).(*redisnode.Driver)
	if _, err := d.Inspect(t.Context(), "name"); !errors.Is(err, drivers.ErrNotHeld) {
		t.Errorf("nobody holds: %v", err)
	}
	r := request("name", long)
	r.Note = "two words  and spaces "
	g := acquire(t, d, r)
	h, err := d.Inspect(t.Context(), "name")
	if err != nil {
		t.Fatal(err)
	}
	if h.Owner != g.Owner || h.Note != r.Note || h.Token != g.Token || h.Remaining <= 0 || h.Remaining > long {
		t.Errorf("got %+v for %+v", h, g)
	}
}

func TestGrantOutlivesTheContextThatAskedForIt(t *testing.T) {
	d := open(t, "redis://"+start(t).Addr())
	ctx, cancel := context.WithCancel(t.Context())
	g, err := d.TryAcquire(ctx, request("name", long))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Error(err)
	}
}

func TestGrantEndsByItself(t *testing.T) {
	d := open(t, "redis://"+start(t).Addr())
	first := acquire(t, d, request("name", 50*time.Millisecond))
	eventually(t, "the name is free", func() bool {
		_, err := d.TryAcquire(t.Context(), request("name", long))
		return err == nil
	})
	if _, err := d.Renew(t.Context(), first); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("the first grant was renewed: %v", err)
	}
}

func TestRenewSetsAndNeverAdds(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	g := acquire(t, d, request("name", long))
	for range 3 {
		kept, err := d.Renew(t.Context(), g)
		if err != nil || kept != long {
			t.Fatalf("kept %v, %v", kept, err)
		}
	}
	g.TTL = 2 * long
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if left := client.PTTL(t.Context(), keys(t, client, "hold")[0]).Val(); left <= long || left > 2*long {
		t.Errorf("%v left of %v", left, g.TTL)
	}
}

func TestRenewNeverTakesANameBack(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	g := acquire(t, d, request("name", long))
	client.FlushAll(t.Context())
	if _, err := d.Renew(t.Context(), g); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	if found := keys(t, client, "*"); len(found) > 0 {
		t.Errorf("renew made %q", found)
	}
	successor := acquire(t, d, request("name", long))
	if _, err := d.Renew(t.Context(), g); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	release(t, d, successor)
}

func TestReleaseNeverTouchesASuccessor(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	first := acquire(t, d, request("name", long))
	release(t, d, first)
	second := acquire(t, d, request("name", long))
	for range 2 {
		if err := d.Release(t.Context(), first); !errors.Is(err, drivers.ErrLost) {
			t.Errorf("a repeated release says %v, want lost", err)
		}
	}
	if len(keys(t, client, "hold")) != 1 {
		t.Error("the successor's hold is gone")
	}
	release(t, d, second)
}

func TestReleaseNeedsNameAndOwnerOnly(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	g := acquire(t, d, request("name", long))
	release(t, d, drivers.Grant{Name: g.Name, Owner: g.Owner})
	if found := append(keys(t, client, "hold"), keys(t, client, "gone")...); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
}

func TestReleaseDefeatsARequestThatArrivesAfterIt(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	late := request("name", long)
	if err := d.Release(t.Context(), drivers.Grant{Name: late.Name, Owner: late.Owner}); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	if _, err := d.TryAcquire(t.Context(), late); !errors.Is(err, drivers.ErrReleased) {
		t.Errorf("the late request got %v, want released", err)
	}
	if found := keys(t, client, "hold"); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
	for _, key := range keys(t, client, "gone") {
		if left := client.PTTL(t.Context(), key).Val(); left <= 0 || left > time.Minute {
			t.Errorf("%s ends in %v", key, left)
		}
	}
	release(t, d, acquire(t, d, request("name", long)))
}

// A server that stood still executes what its clients sent before they gave up.
func TestNoOrphanComesOfAServerThatStoodStill(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	for range 10 {
		if err := node.Pause(); err != nil {
			t.Fatal(err)
		}
		r := request("name", long)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := d.TryAcquire(ctx, r)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, drivers.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		reclaimed := make(chan error, 1)
		go func() { reclaimed <- reclaim(d, r) }()
		if err := node.Resume(); err != nil {
			t.Fatal(err)
		}
		if err := <-reclaimed; err != nil {
			t.Fatal(err)
		}
		release(t, d, acquire(t, d, request("name", long)))
	}
	eventually(t, "no hold is left", func() bool { return len(keys(t, client, "hold")) == 0 })
}

// reclaim does as package lock does.
func reclaim(d drivers.Driver, r drivers.Request) error {
	var err error
	for range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err = d.Release(ctx, drivers.Grant{Name: r.Name, Owner: r.Owner})
		cancel()
		if err == nil || errors.Is(err, drivers.ErrLost) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func TestCancelEndsACallThatHangs(t *testing.T) {
	node := start(t)
	visitor, err := redisnode.New(t.Context(), dial(t, node.Addr()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { visitor.Close() })
	for kind, d := range map[string]drivers.Driver{"URL": open(t, "redis://"+node.Addr()), "client": visitor} {
		t.Run(kind, func(t *testing.T) {
			g := acquire(t, d, request(kind, long))
			if err := node.Pause(); err != nil {
				t.Fatal(err)
			}
			defer node.Resume()
			calls := map[string]func(context.Context) error{
				"acquire": func(ctx context.Context) error { _, err := d.TryAcquire(ctx, request("name", long)); return err },
				"renew":   func(ctx context.Context) error { _, err := d.Renew(ctx, g); return err },
				"release": func(ctx context.Context) error { return d.Release(ctx, g) },
				"inspect": func(ctx context.Context) error { _, err := d.(drivers.Inspector).Inspect(ctx, "name"); return err },
				"check":   func(ctx context.Context) error { _, err := d.(drivers.Checker).Check(ctx); return err },
			}
			for name, call := range calls {
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- call(ctx) }()
				time.Sleep(20 * time.Millisecond) // so that it hangs at the server
				cancel()
				select {
				case err := <-done:
					if !errors.Is(err, context.Canceled) {
						t.Errorf("%s: %v", name, err)
					}
				case <-time.After(2 * time.Second): // the client's own bound is longer
					t.Errorf("%s goes on without its context", name)
				}
			}
		})
	}
}

func TestServerThatForgotTheScriptsIsSentThem(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	flush := func() {
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	g := acquire(t, d, request("name", long))
	flush()
	if _, err := d.Renew(t.Context(), g); err != nil {
		t.Error(err)
	}
	flush()
	release(t, d, g)
}

func TestTokensRiseThroughTheLossOfTheirCounter(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	var last drivers.Token
	grant := func(after string) {
		t.Helper()
		g := acquire(t, d, request("name", long))
		if g.Token <= last {
			t.Errorf("after %s: token %d, then %d", after, last, g.Token)
		}
		if g.Token <= 1e15 || g.Token >= 1<<53 {
			t.Errorf("token %d is not a clock in µs below 2^53", g.Token)
		}
		if held, _ := d.(drivers.Inspector).Inspect(t.Context(), "name"); held.Token != g.Token {
			t.Errorf("the service keeps token %d for %d: lost digits", held.Token, g.Token)
		}
		last = g.Token
		release(t, d, g)
	}
	for range 20 {
		grant("a grant")
	}
	client.Del(t.Context(), keys(t, client, "token")...)
	grant("the loss of the counter")
	counter := keys(t, client, "token")[0]
	old := client.Get(t.Context(), counter).Val()
	for range 5 {
		grant("a grant")
	}
	client.Set(t.Context(), counter, old, 0)
	grant("a crash that brought an old snapshot back")
	if err := node.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server answers the driver", func() bool {
		_, err := d.(drivers.Inspector).Inspect(t.Context(), "name")
		return errors.Is(err, drivers.ErrNotHeld)
	})
	grant("a restart without data")
}

func TestCounterLivesSevenDaysBeyondItsOwnClock(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	g := acquire(t, d, request("name", long))
	ends := client.PExpireTime(t.Context(), keys(t, client, "token")[0]).Val()
	if want := time.Duration(g.Token)*time.Microsecond + 7*24*time.Hour; (want - ends).Abs() > time.Second {
		t.Errorf("the counter ends at %v, want %v", ends, want)
	}
}

func TestTokenCounterNeverPassesTheDigitsOfLua(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	release(t, d, acquire(t, d, request("name", long)))
	client.Set(t.Context(), keys(t, client, "token")[0], int64(1)<<53-2, 0)
	g := acquire(t, d, request("name", long))
	if g.Token != 1<<53-1 {
		t.Errorf("token %d", g.Token)
	}
	release(t, d, g)
	if _, err := d.TryAcquire(t.Context(), request("name", long)); err == nil || errors.Is(err, drivers.ErrUnavailable) {
		t.Errorf("got %v, want a lasting error", err)
	}
	if found := keys(t, client, "hold"); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
}

func TestUnfencedGrantsLeaveNothing(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	for range 100 {
		r := request("name"+newOwner(), long)
		r.Fenced = false
		g := acquire(t, d, r)
		if g.Token != 0 {
			t.Fatalf("token %d was not asked for", g.Token)
		}
		release(t, d, g)
	}
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestDistinctNamesNeverBlockEachOther(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	names := []string{
		"a", "A", "a ", " a", "a:b", "hold:{a}", "{a}", "}a{", "a}", "%7Ba%7D", "%", "%25", "*", "a\x00", "\x00", "\xff\xfe", "é", "e\u0301",
		"..", ".", "/", "日本", strings.Repeat("x", 1024), strings.Repeat("\xff", 1024),
	}
	for _, name := range names {
		acquire(t, d, request(name, long))
		if h, err := d.(drivers.Inspector).Inspect(t.Context(), name); err != nil || h.Owner == "" {
			t.Errorf("%q: %v", name, err)
		}
	}
	if n := len(keys(t, client, "hold")); n != len(names) {
		t.Errorf("%d names have %d holds", len(names), n)
	}
	for _, name := range []string{"", strings.Repeat("x", 1025)} {
		var fault *drivers.ConfigError
		if _, err := d.TryAcquire(t.Context(), request(name, long)); !errors.As(err, &fault) {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
}

func TestTimeToLiveIsRoundedUpOrRefused(t *testing.T) {
	d := open(t, "redis://"+start(t).Addr())
	if g := acquire(t, d, request("up", 20*time.Second+time.Nanosecond)); g.TTL != 20*time.Second+time.Millisecond {
		t.Errorf("kept %v", g.TTL)
	}
	for _, ttl := range []time.Duration{-1, 0, 1, 9 * time.Millisecond, drivers.MaxTTL + 1} {
		var fault *drivers.ConfigError
		if _, err := d.TryAcquire(t.Context(), request("name", ttl)); !errors.As(err, &fault) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
}

func TestKeyInOtherUseIsLeftAlone(t *testing.T) {
	node := start(t)
	d, client := open(t, "redis://"+node.Addr()), dial(t, node.Addr())
	release(t, d, acquire(t, d, request("name", long)))
	client.HSet(t.Context(), "lock:hold:{name}", "field", "value")
	if _, err := d.TryAcquire(t.Context(), request("name", long)); err == nil || errors.Is(err, drivers.ErrUnavailable) {
		t.Errorf("got %v, want a lasting error", err)
	}
	if client.HGet(t.Context(), "lock:hold:{name}", "field").Val() != "value" {
		t.Error("the key was overwritten")
	}
}

func TestPrefixesAreApart(t *testing.T) {
	addr := start(t).Addr()
	one, two := open(t, "redis://"+addr+"?lock_prefix=one"), open(t, "redis://"+addr+"?lock_prefix=two")
	acquire(t, one, request("name", long))
	acquire(t, two, request("name", long))
}

func TestCloseLeavesNoConnectionAndNoGoroutine(t *testing.T) {
	node := start(t)
	client := dial(t, node.Addr())
	before := len(strings.Split(client.ClientList(t.Context()).Val(), "\n"))
	goroutines := runtime.NumGoroutine()
	d := open(t, "redis://"+node.Addr())
	done := make(chan bool)
	for range 8 {
		go func() {
			for range 20 {
				r := request(newOwner(), long)
				if g, err := d.TryAcquire(t.Context(), r); err == nil {
					_ = d.Release(t.Context(), g)
				}
			}
			done <- true
		}()
	}
	for range 8 {
		<-done
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the connections are closed", func() bool {
		return len(strings.Split(client.ClientList(t.Context()).Val(), "\n")) == before
	})
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if _, err := d.TryAcquire(t.Context(), request("name", long)); !errors.Is(err, drivers.ErrClosed) {
		t.Errorf("a closed driver says %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsACallThatHangs(t *testing.T) {
	node := start(t)
	d := open(t, "redis://"+node.Addr())
	if err := node.Pause(); err != nil {
		t.Fatal(err)
	}
	defer node.Resume()
	done := make(chan error, 1)
	go func() {
		_, err := d.TryAcquire(context.Background(), request("name", long))
		done <- err
	}()
	time.Sleep(20 * time.Millisecond) // so that it hangs at the server
	d.Close()
	select {
	case err := <-done:
		if !errors.Is(err, drivers.ErrClosed) {
			t.Errorf("got %v", err)
		}
	case <-time.After(2 * time.Second):
		t.Error("the call goes on")
	}
}

func TestCallersClientIsNeverClosed(t *testing.T) {
	client := dial(t, start(t).Addr())
	d, err := redisnode.New(t.Context(), client, &redisnode.Options{Prefix: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	release(t, d, acquire(t, d, request("name", long)))
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}
