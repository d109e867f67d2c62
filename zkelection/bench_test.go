package zkelection_test

import (
	"fmt"
	"testing"

	"github.com/go-zookeeper/zk"
)

// The floor is what the service needs: create and delete through the same
// client.
func BenchmarkFloor(b *testing.B) {
	conn := eye(b)
	must(b, makeParent(b, conn))
	at := parent(b, "name") + "/lock-"
	for b.Loop() {
		created, err := conn.Create(at, []byte("a note"), zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
		must(b, err)
		must(b, conn.Delete(created, -1))
	}
}

func makeParent(b *testing.B, conn *zk.Conn) error {
	d := open(b, "")
	release(b, d, acquire(b, d, "name"))
	_, _, err := conn.Exists(parent(b, "name"))
	return err
}

func BenchmarkPair(b *testing.B) {
	d := open(b, "")
	for b.Loop() {
		g, err := d.TryAcquire(b.Context(), request("name"))
		must(b, err)
		must(b, d.Release(b.Context(), g))
	}
}

func BenchmarkPairsOfManyNames(b *testing.B) {
	d := open(b, "")
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		name := fmt.Sprint("name", owners.Add(1))
		for pb.Next() {
			g, err := d.TryAcquire(b.Context(), request(name))
			must(b, err)
			must(b, d.Release(b.Context(), g))
		}
	})
}

// A hand-over goes from one client to another.
func BenchmarkHandOver(b *testing.B) {
	x, y := open(b, ""), open(b, "")
	g := acquire(b, x, "name")
	for b.Loop() {
		b.StopTimer()
		done := wait(b, within(b), y, request("name"))
		b.StartTimer()
		must(b, x.Release(b.Context(), g))
		g = mustGet(b, done)
		x, y = y, x
	}
}

func BenchmarkRenewal(b *testing.B) {
	d := open(b, "")
	g := acquire(b, d, "name")
	for b.Loop() {
		_, err := d.Renew(b.Context(), g)
		must(b, err)
	}
}
