package conformance_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/drivers"
	"github.com/lockkit/lock/drivers/memory"
)

func TestMeasureTimesPairsAndHandoffs(t *testing.T) {
	store := memory.NewStore()
	speed, err := conformance.Measure(t.Context(), conformance.MeasureConfig{
		Open:     func(context.Context) (drivers.Driver, error) { return memory.New(store, nil), nil },
		Pairs:    100,
		Handoffs: 5,
		Hold:     5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if speed.PairP50 <= 0 || speed.PairP99 < speed.PairP50 || speed.HandoffP50 <= 0 || speed.HandoffMax < speed.HandoffP50 {
		t.Errorf("%+v", speed)
	}
}

func TestSpeedIsWrittenInMicroseconds(t *testing.T) {
	speed := conformance.Speed{PairP50: 1500, PairP99: 2 * time.Microsecond, HandoffP50: time.Millisecond, HandoffMax: time.Second}
	text, err := json.Marshal(speed)
	if err != nil || string(text) != `{"pair_p50_us":1.5,"pair_p99_us":2,"handoff_p50_us":1000,"handoff_max_us":1000000}` {
		t.Errorf("%s %v", text, err)
	}
	var back conformance.Speed
	if err := json.Unmarshal(text, &back); err != nil || back != speed {
		t.Errorf("%+v %v", back, err)
	}
}

func BenchmarkMemory(b *testing.B) {
	store := memory.NewStore()
	conformance.Bench(b, conformance.Config{
		Open: func(context.Context) (drivers.Driver, error) { return memory.New(store, nil), nil },
	})
}
