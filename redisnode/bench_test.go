package redisnode_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

const compareAndDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// BenchmarkFloor is what a lock on Redis cannot do without, through the same
// client: SET NX PX and a script that compares and deletes.
func BenchmarkFloor(b *testing.B) {
	client := dial(b, servers.For(b, servers.Redis, servers.Options{}).Addrs()[0])
	script := redis.NewScript(compareAndDelete)
	ctx := b.Context()
	script.Load(ctx, client)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		owner := "floor" + strconv.Itoa(i)
		if err := client.Do(ctx, "set", "floor", owner, "px", 15000, "nx").Err(); err != nil {
			b.Fatal(err)
		}
		if err := script.Run(ctx, client, []string{"floor"}, owner).Err(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPair(b *testing.B) {
	d := open(b, "redis://"+servers.For(b, servers.Redis, servers.Options{}).Addrs()[0])
	for _, bench := range []struct {
		name   string
		fenced bool
		ctx    context.Context
	}{
		{"plain", false, context.Background()},
		{"fenced", true, context.Background()},
		{"cancellable", true, b.Context()},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				g, err := d.TryAcquire(bench.ctx, drivers.Request{
					Name: "pair", Owner: "owner" + strconv.Itoa(i), TTL: 15 * time.Second, Fenced: bench.fenced,
				})
				if err != nil {
					b.Fatal(err)
				}
				if err := d.Release(bench.ctx, g); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
