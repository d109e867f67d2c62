package redlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/redlock"
)

// long is a time to live that no test outlasts.
const long = time.Minute

// A cluster is five servers, a client beside the driver's for each, and a
// driver.
type cluster struct {
	t       testing.TB
	nodes   []*servers.Node
	clients []*redis.Client
	driver  drivers.Driver
}

// start starts servers and opens a driver on them.
func start(t testing.TB, settings string) *cluster {
	c := &cluster{t: t, nodes: servers.For(t, servers.Redis, servers.Options{Members: 5}).Nodes}
	for _, n := range c.nodes {
		client := redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true})
		t.Cleanup(func() { client.Close() })
		c.clients = append(c.clients, client)
	}
	c.driver = c.open(settings)
	return c
}

func (c *cluster) url(settings string) string {
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.Addr())
	}
	return "redlock://" + strings.Join(addrs, ",") + settings
}

func (c *cluster) open(settings string) drivers.Driver {
	c.t.Helper()
	d, err := tryOpen(c.t.Context(), c.url(settings))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { d.Close() })
	return d
}

func tryOpen(ctx context.Context, rawURL string) (drivers.Driver, error) {
	u, err := drivers.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return drivers.Open(ctx, u)
}

func (c *cluster) do(which []int, what func(*servers.Node) error) {
	c.t.Helper()
	for _, i := range which {
		if err := what(c.nodes[i]); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) kill(which ...int)   { c.t.Helper(); c.do(which, (*servers.Node).Kill) }
func (c *cluster) pause(which ...int)  { c.t.Helper(); c.do(which, (*servers.Node).Pause) }
func (c *cluster) resume(which ...int) { c.t.Helper(); c.do(which, (*servers.Node).Resume) }

func (c *cluster) restart(which ...int) {
	c.t.Helper()
	c.do(which, func(n *servers.Node) error { return n.RestartEmpty(c.t.Context()) })
}

// keys lists the keys of a kind on a server.
func (c *cluster) keys(server int, kind string) []string {
	c.t.Helper()
	found, err := c.clients[server].Keys(context.Background(), "lock:"+kind+":*").Result()
	if err != nil {
		c.t.Fatal(err)
	}
	return found
}

// holds counts the servers that hold a name, any name.
func (c *cluster) holds() int {
	c.t.Helper()
	n := 0
	for i := range c.nodes {
		n += len(c.keys(i, "hold"))
	}
	return n
}

// plant has a server hold a name for somebody else.
func (c *cluster) plant(server int, name, owner string) {
	c.t.Helper()
	if err := c.clients[server].Set(c.t.Context(), "lock:hold:{"+name+"}", owner+" 0 a note", long).Err(); err != nil {
		c.t.Fatal(err)
	}
}

func request(name string, ttl time.Duration) drivers.Request {
	return drivers.Request{Name: name, Owner: newOwner(), TTL: ttl, Note: "a note"}
}

func newOwner() string { return "owner" + strconv.FormatUint(rand.Uint64(), 36) }

// acquire takes a name that is free. A vote may still be split: on a busy
// machine the last requests of earlier grants are still on their way.
func (c *cluster) acquire(r drivers.Request) drivers.Grant {
	c.t.Helper()
	g, err := c.driver.TryAcquire(c.t.Context(), r)
	for tries := 1; errors.Is(err, drivers.ErrNoQuorum) && !errors.Is(err, drivers.ErrUnavailable) && tries < 100; tries++ {
		time.Sleep(10 * time.Millisecond)
		r.Owner = newOwner()
		g, err = c.driver.TryAcquire(c.t.Context(), r)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

func (c *cluster) release(g drivers.Grant) {
	c.t.Helper()
	if err := c.driver.Release(c.t.Context(), g); err != nil {
		c.t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for range 1500 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within 15 s: %s", what)
}

func TestMajorityIsEnough(t *testing.T) {
	c := start(t, "")
	c.kill(0, 3)
	g := c.acquire(request("name", long))
	if _, err := c.driver.Renew(t.Context(), g); err != nil {
		t.Error(err)
	}
	c.release(g)
	c.release(c.acquire(request("name", long)))
}

func TestMinorityIsNotEnough(t *testing.T) {
	for state, stop := range map[string]func(*cluster, ...int){"dead": (*cluster).kill, "hung": (*cluster).pause} {
		t.Run(state, func(t *testing.T) {
			c := start(t, "?lock_node_timeout=500ms")
			stop(c, 0, 3, 4)
			_, err := c.driver.TryAcquire(t.Context(), request("name", long))
			if !errors.Is(err, drivers.ErrNoQuorum) || !errors.Is(err, drivers.ErrUnavailable) {
				t.Errorf("got %v, want no quorum and unavailable", err)
			}
			for _, i := range []int{1, 2} {
				eventually(t, "nothing is left", func() bool { return len(c.keys(i, "hold")) == 0 })
			}
		})
	}
}

func TestHeldNameIsRefusedWithItsHolder(t *testing.T) {
	c := start(t, "")
	g := c.acquire(request("name", long))
	_, err := c.driver.TryAcquire(t.Context(), request("name", long))
	var held *drivers.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("got %v, want a HeldError", err)
	}
	if h := held.Holder; h.Owner != g.Owner || h.Note != "a note" || held.Remaining <= 0 || held.Remaining > long {
		t.Errorf("got %+v for %+v", held, g)
	}
	h, err := c.driver.(*redlock.Driver).Inspect(t.Context(), "name")
	if err != nil || h.Owner != g.Owner || h.Note != "a note" {
		t.Errorf("inspect: %+v, %v", h, err)
	}
	c.release(g)
	eventually(t, "nobody holds", func() bool {
		_, err := c.driver.(*redlock.Driver).Inspect(t.Context(), "name")
		return errors.Is(err, drivers.ErrNotHeld)
	})
}

func TestHolderOfAMinorityIsNoHolder(t *testing.T) {
	c := start(t, "")
	c.plant(0, "name", "other")
	c.plant(1, "name", "other")
	if _, err := c.driver.(*redlock.Driver).Inspect(t.Context(), "name"); !errors.Is(err, drivers.ErrNotHeld) {
		t.Errorf("got %v", err)
	}
	c.release(c.acquire(request("name", long)))
}

func TestSplitVoteIsNotHeldAndLeavesNothing(t *testing.T) {
	c := start(t, "")
	for range 20 {
		c.plant(0, "name", "one")
		c.plant(1, "name", "one")
		c.plant(2, "name", "two")
		c.plant(3, "name", "two")
		_, err := c.driver.TryAcquire(t.Context(), request("name", long))
		if !errors.Is(err, drivers.ErrNoQuorum) || errors.Is(err, drivers.ErrHeld) || errors.Is(err, drivers.ErrUnavailable) {
			t.Fatalf("got %v, want no quorum only", err)
		}
		// The call waits for the servers that granted.
		if found := c.keys(4, "hold"); len(found) > 0 {
			t.Fatalf("left behind: %q", found)
		}
	}
}

func TestReleaseOfAFailedAttemptAsksNobody(t *testing.T) {
	c := start(t, "")
	for i := range 4 {
		c.plant(i, "name", "other"+strconv.Itoa(i/2))
	}
	r := request("name", long)
	if _, err := c.driver.TryAcquire(t.Context(), r); !errors.Is(err, drivers.ErrNoQuorum) {
		t.Fatal(err)
	}
	if err := c.driver.Release(t.Context(), drivers.Grant{Name: r.Name, Owner: r.Owner}); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	for i := range c.nodes {
		if found := c.keys(i, "gone"); len(found) > 0 {
			t.Errorf("server %d was asked in vain: %q", i, found)
		}
	}
}

func TestHungServerHoldsNothingUp(t *testing.T) {
	c := start(t, "?lock_node_timeout=20s")
	c.pause(2)
	defer c.resume(2)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	g, err := c.driver.TryAcquire(ctx, request("name", long))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.driver.Renew(ctx, g); err != nil {
		t.Error(err)
	}
	if err := c.driver.Release(ctx, g); err != nil {
		t.Error(err)
	}
}

// A server that stood still executes what was sent before it was given up.
func TestStragglerLeavesNoOrphan(t *testing.T) {
	c := start(t, "?lock_node_timeout=500ms")
	for i := range 20 {
		server := i % len(c.nodes)
		c.pause(server)
		g := c.acquire(request("name", long))
		if i%7 == 0 {
			time.Sleep(600 * time.Millisecond) // the server is given up before it goes on
		}
		c.release(g)
		c.resume(server)
		eventually(t, "no hold is left", func() bool { return c.holds() == 0 })
	}
}

func TestHungServerIsToldOfTheReleaseWhenItGoesOn(t *testing.T) {
	c := start(t, "?lock_node_timeout=500ms")
	c.pause(0)
	c.release(c.acquire(request("name", long)))
	time.Sleep(1700 * time.Millisecond) // both requests are given up
	c.resume(0)
	eventually(t, "it was told", func() bool { return len(c.keys(0, "hold")) == 0 && len(c.keys(0, "gone")) == 1 })
}

func TestReleasesLeaveNoKey(t *testing.T) {
	c := start(t, "")
	for range 300 {
		c.release(c.acquire(request("name", long)))
	}
	for i, client := range c.clients {
		eventually(t, "server "+strconv.Itoa(i)+" is empty", func() bool { return client.DBSize(t.Context()).Val() == 0 })
	}
}

func TestContendersExcludeEachOtherAndLeaveNoHold(t *testing.T) {
	c := start(t, "")
	var wg sync.WaitGroup
	var inside, grants int
	var mu sync.Mutex
	for range 6 {
		wg.Go(func() {
			for range 40 {
				g, err := c.driver.TryAcquire(t.Context(), request("name", long))
				if err != nil {
					if !errors.Is(err, drivers.ErrHeld) && !errors.Is(err, drivers.ErrNoQuorum) {
						t.Error(err)
					}
					time.Sleep(rand.N(5 * time.Millisecond))
					continue
				}
				mu.Lock()
				inside++
				grants++
				if inside > 1 {
					t.Error("two hold at once")
				}
				mu.Unlock()
				mu.Lock()
				inside--
				mu.Unlock()
				if err := c.driver.Release(t.Context(), g); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if grants == 0 {
		t.Error("nobody ever held")
	}
	eventually(t, "no hold is left", func() bool { return c.holds() == 0 })
}

func TestLateAnswersAreNoGrant(t *testing.T) {
	c := start(t, "?lock_node_timeout=10s")
	c.pause(0, 1, 2)
	done := make(chan error, 1)
	go func() {
		_, err := c.driver.TryAcquire(t.Context(), request("name", 100*time.Millisecond))
		done <- err
	}()
	time.Sleep(200 * time.Millisecond) // longer than what is asked for
	c.resume(0, 1, 2)
	if err := <-done; !errors.Is(err, drivers.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	eventually(t, "nothing is left", func() bool { return c.holds() == 0 })
}

func TestRenewalGivesTheHoldToARestartedServer(t *testing.T) {
	c := start(t, "")
	g := c.acquire(request("name", long))
	eventually(t, "all servers hold", func() bool { return c.holds() == 5 })
	c.restart(0, 4)
	eventually(t, "the restarted servers hold", func() bool {
		if _, err := c.driver.Renew(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		return c.holds() == 5
	})
	// They count now: three others may go.
	c.kill(1, 2)
	eventually(t, "a majority with them", func() bool {
		_, err := c.driver.Renew(t.Context(), g)
		return err == nil
	})
	c.release(g)
	for _, i := range []int{0, 3, 4} {
		eventually(t, "nothing is left", func() bool { return len(c.keys(i, "hold")) == 0 })
	}
}

func TestRenewalWithoutAMajorityGivesNothing(t *testing.T) {
	c := start(t, "")
	g := c.acquire(request("name", long))
	eventually(t, "all servers hold", func() bool { return c.holds() == 5 })
	c.restart(0, 1)
	c.pause(2)
	_, err := c.driver.Renew(t.Context(), g)
	if !errors.Is(err, drivers.ErrUnavailable) || !errors.Is(err, drivers.ErrNoQuorum) || errors.Is(err, drivers.ErrLost) {
		t.Errorf("two of five: got %v, want unavailable", err)
	}
	c.resume(2)
	c.restart(2)
	eventually(t, "the loss is seen", func() bool {
		_, err := c.driver.Renew(t.Context(), g)
		if err == nil {
			t.Fatal("a lost grant was renewed")
		}
		return errors.Is(err, drivers.ErrLost)
	})
	if n := c.holds(); n != 2 {
		t.Errorf("%d servers hold, want the two that never stopped", n)
	}
	if err := c.driver.Release(t.Context(), g); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("the release of a lost grant says %v", err)
	}
}

// By then the name may be somebody else's.
func TestRenewalGivesNothingAfterItsDeadline(t *testing.T) {
	c := start(t, "?lock_node_timeout=20s")
	g := c.acquire(request("name", 2*time.Second))
	eventually(t, "all servers hold", func() bool { return c.holds() == 5 })
	c.clients[0].FlushAll(t.Context())
	c.pause(0)
	if _, err := c.driver.Renew(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	c.resume(0)
	if err := c.driver.Close(); err != nil { // it waits for what is under way
		t.Error(err)
	}
	if found := c.keys(0, "hold"); len(found) > 0 {
		t.Errorf("the server was given %q", found)
	}
}

func TestNameTakenOnAMajorityIsLost(t *testing.T) {
	c := start(t, "")
	g := c.acquire(request("name", long))
	eventually(t, "all servers hold", func() bool { return c.holds() == 5 })
	for i := range 3 {
		c.plant(i, "name", "other")
	}
	if _, err := c.driver.Renew(t.Context(), g); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	if err := c.driver.Release(t.Context(), g); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	for i := range 3 {
		if len(c.keys(i, "hold")) != 1 {
			t.Error("the successor's hold is gone")
		}
	}
}

func TestRenewSetsAndNeverAdds(t *testing.T) {
	c := start(t, "")
	g := c.acquire(request("name", long))
	for range 3 {
		if kept, err := c.driver.Renew(t.Context(), g); err != nil || kept != long {
			t.Fatalf("kept %v, %v", kept, err)
		}
	}
	for i, client := range c.clients {
		eventually(t, "it is set on server "+strconv.Itoa(i), func() bool {
			left := client.PTTL(t.Context(), "lock:hold:{name}").Val()
			return left > 0 && left <= long
		})
	}
}

func TestReleaseNeverTouchesASuccessor(t *testing.T) {
	c := start(t, "")
	first := c.acquire(request("name", long))
	c.release(first)
	eventually(t, "no hold is left", func() bool { return c.holds() == 0 })
	second := c.acquire(request("name", long))
	for _, g := range []drivers.Grant{first, {Name: first.Name, Owner: first.Owner}} {
		if err := c.driver.Release(t.Context(), g); !errors.Is(err, drivers.ErrLost) {
			t.Errorf("a repeated release says %v, want lost", err)
		}
	}
	if _, err := c.driver.Renew(t.Context(), second); err != nil {
		t.Errorf("the successor: %v", err)
	}
	c.release(second)
}

func TestReleaseNeedsNameAndOwnerOnly(t *testing.T) {
	c := start(t, "")
	g := c.acquire(request("name", long))
	eventually(t, "all servers hold", func() bool { return c.holds() == 5 })
	c.release(drivers.Grant{Name: g.Name, Owner: g.Owner})
	for i, client := range c.clients {
		eventually(t, "server "+strconv.Itoa(i)+" is empty", func() bool { return client.DBSize(t.Context()).Val() == 0 })
	}
}

func TestReleaseDefeatsARequestThatArrivesAfterIt(t *testing.T) {
	c := start(t, "")
	late := request("name", long)
	if err := c.driver.Release(t.Context(), drivers.Grant{Name: late.Name, Owner: late.Owner}); !errors.Is(err, drivers.ErrLost) {
		t.Errorf("got %v, want lost", err)
	}
	eventually(t, "all servers know", func() bool {
		n := 0
		for i := range c.nodes {
			n += len(c.keys(i, "gone"))
		}
		return n == 5
	})
	if g, err := c.driver.TryAcquire(t.Context(), late); err == nil {
		t.Errorf("the late request got %+v", g)
	}
	if n := c.holds(); n != 0 {
		t.Errorf("%d servers hold", n)
	}
}

func TestCancelEndsACallThatHangs(t *testing.T) {
	c := start(t, "?lock_node_timeout=20s")
	g := c.acquire(request("held", long))
	c.pause(0, 1, 2)
	calls := map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := c.driver.TryAcquire(ctx, request("name", long))
			return err
		},
		"renew":   func(ctx context.Context) error { _, err := c.driver.Renew(ctx, g); return err },
		"release": func(ctx context.Context) error { return c.driver.Release(ctx, g) },
		"inspect": func(ctx context.Context) error {
			_, err := c.driver.(drivers.Inspector).Inspect(ctx, "held")
			return err
		},
	}
	for name, call := range calls {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		time.Sleep(20 * time.Millisecond) // so that it hangs at the servers
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(2 * time.Second):
			t.Errorf("%s goes on without its context", name)
		}
	}
	c.resume(0, 1, 2)
	eventually(t, "nothing is left", func() bool { return c.holds() == 0 })
}

func TestCloseLeavesNoHoldConnectionOrGoroutine(t *testing.T) {
	c := start(t, "?lock_node_timeout=500ms")
	goroutines := runtime.NumGoroutine()
	d := c.open("?lock_node_timeout=500ms")
	connections := func(server int) int {
		return len(strings.Split(c.clients[server].ClientList(context.Background()).Val(), "\n"))
	}
	c.pause(1)
	for range 5 {
		g, err := d.TryAcquire(t.Context(), request(newOwner(), long))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Release(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
	c.resume(1)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := c.driver.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "no hold is left", func() bool { return c.holds() == 0 })
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	for i := range c.nodes {
		eventually(t, "the connections are closed", func() bool { return connections(i) <= 2 }) // the test's own, and a last line
	}
	if _, err := d.TryAcquire(t.Context(), request("name", long)); !errors.Is(err, drivers.ErrClosed) {
		t.Errorf("a closed driver says %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestTimeToLiveIsRoundedUpOrRefused(t *testing.T) {
	c := start(t, "")
	if g := c.acquire(request("up", 20*time.Second+time.Nanosecond)); g.TTL != 20*time.Second+time.Millisecond {
		t.Errorf("kept %v", g.TTL)
	}
	for _, ttl := range []time.Duration{-1, 0, 1, 99 * time.Millisecond, drivers.MaxTTL + 1} {
		var fault *drivers.ConfigError
		if _, err := c.driver.TryAcquire(t.Context(), request("name", ttl)); !errors.As(err, &fault) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
}
