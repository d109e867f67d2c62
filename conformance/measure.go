package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lockkit/lock"
	"github.com/lockkit/lock/drivers"
)

// A MeasureConfig says what to measure. Open is required.
type MeasureConfig struct {
	// Open makes a new client of the service, as in Config.
	Open func(ctx context.Context) (drivers.Driver, error)
	// TTL of the leases. The default is 10 s.
	TTL time.Duration
	// Pairs is how many acquires with their releases are timed. The default is 500.
	Pairs int
	// For bounds the time that the pairs and the hand-offs take, each; what was
	// measured by then counts, and one is measured in any case. The default is 10 s.
	For time.Duration
	// Handoffs is how many hand-offs are timed. The default is 20.
	Handoffs int
	// Hold is how long each lease is held, at least, while another client waits,
	// if the driver is Prompt; the time is random up to three times as much. The
	// default is 50 ms. A driver that is not Prompt is not asked for less than
	// its waiters need to be as slow as they get: each lease is held for some
	// 0.3 s, until the pauses between their looks have grown to the default of
	// lock.Options.Poll, and for up to one such pause more, at random, so that
	// a waiter is met at every phase of it.
	Hold time.Duration
}

func (c MeasureConfig) withDefaults() MeasureConfig {
	c.TTL = cmp.Or(c.TTL, 10*time.Second)
	c.Pairs = cmp.Or(c.Pairs, 500)
	c.For = cmp.Or(c.For, 10*time.Second)
	c.Handoffs = cmp.Or(c.Handoffs, 20)
	c.Hold = cmp.Or(c.Hold, 50*time.Millisecond)
	return c
}

// A Speed is what one caller sees through package lock: figures to compare
// backends on one machine by, in one run.
type Speed struct {
	PairP50, PairP99       time.Duration // an uncontended acquire with its release
	HandoffP50, HandoffMax time.Duration // from just before the release until a waiter in another client has the lease
}

type speedJSON struct {
	PairP50    float64 `json:"pair_p50_us"`
	PairP99    float64 `json:"pair_p99_us"`
	HandoffP50 float64 `json:"handoff_p50_us"`
	HandoffMax float64 `json:"handoff_max_us"`
}

// MarshalJSON writes microseconds.
func (s Speed) MarshalJSON() ([]byte, error) {
	return json.Marshal(speedJSON{micros(s.PairP50), micros(s.PairP99), micros(s.HandoffP50), micros(s.HandoffMax)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Speed) UnmarshalJSON(text []byte) error {
	var j speedJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*s = Speed{duration(j.PairP50), duration(j.PairP99), duration(j.HandoffP50), duration(j.HandoffMax)}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func duration(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

// Measure times a driver through package lock with two clients. Run it while
// nothing else runs.
func Measure(ctx context.Context, c MeasureConfig) (Speed, error) {
	c = c.withDefaults()
	s, err := newStopwatch(ctx, c.Open, c.TTL)
	if err != nil {
		return Speed{}, err
	}
	defer s.close()
	pairs, err := repeat(c.Pairs, c.For, func() (time.Duration, error) { return s.pair(ctx) })
	if err != nil {
		return Speed{}, fmt.Errorf("pair: %w", err)
	}
	handoffs, err := repeat(c.Handoffs, c.For, func() (time.Duration, error) { return s.handoff(ctx, s.holdFor(c.Hold)) })
	if err != nil {
		return Speed{}, fmt.Errorf("hand-off: %w", err)
	}
	return Speed{
		PairP50: quantile(pairs, 0.5), PairP99: quantile(pairs, 0.99),
		HandoffP50: quantile(handoffs, 0.5), HandoffMax: quantile(handoffs, 1),
	}, nil
}

// How package lock polls where the service wakes nobody: the pauses begin at
// firstPause, grow by a half each, and end at longestPause. Each is random
// within half of itself to either side. A test holds these against the engine.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = 100 * time.Millisecond
)

// pollGrowth is how long it takes at most until a waiter's pauses have grown. A
// lease that is released before that would flatter the driver: short waits are
// ended sooner than those for which a lock is there.
func pollGrowth() time.Duration {
	var sum time.Duration
	for pause := firstPause; pause < longestPause; pause = pause * 3 / 2 {
		sum += pause * 3 / 2
	}
	return sum
}

// holdFor is how long to hold the next lease.
func (s *stopwatch) holdFor(least time.Duration) time.Duration {
	spread := 2 * least
	if !s.prompt {
		least, spread = pollGrowth(), longestPause
	}
	return least + mrand.N(spread+1) //nolint:gosec // not a secret
}

// repeat collects n measurements, or as many as there is time for, but one.
func repeat(n int, bound time.Duration, once func() (time.Duration, error)) ([]time.Duration, error) {
	var all []time.Duration
	for end := time.Now().Add(bound); len(all) < n && (len(all) == 0 || time.Now().Before(end)); {
		d, err := once()
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	slices.Sort(all)
	return all, nil
}

// quantile is the value that q of the sorted measurements do not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// A stopwatch has two clients and a lock that each of them uses.
type stopwatch struct {
	backends [2]*lock.Backend
	locks    [2]lock.Lock
	prompt   bool // the service wakes waiters
}

// newStopwatch opens the clients, and uses them once: connections, scripts and
// leases that are made on first use are not what is measured.
func newStopwatch(ctx context.Context, open func(context.Context) (drivers.Driver, error), ttl time.Duration) (*stopwatch, error) {
	s, name := &stopwatch{}, "measure-"+rand.Text()
	for i := range s.backends {
		if err := s.openOne(ctx, i, name, open, ttl); err != nil {
			s.close()
			return nil, err
		}
	}
	for range 10 {
		if _, err := s.pair(ctx); err != nil {
			s.close()
			return nil, err
		}
	}
	_, err := s.handoff(ctx, 10*time.Millisecond)
	if err != nil {
		s.close()
	}
	return s, err
}

func (s *stopwatch) openOne(ctx context.Context, i int, name string, open func(context.Context) (drivers.Driver, error), ttl time.Duration) error {
	if open == nil {
		return errors.New("MeasureConfig.Open is nil")
	}
	d, err := open(ctx)
	if err != nil {
		return err
	}
	b, err := lock.New(d, &lock.Options{TTL: ttl})
	if err != nil {
		return errors.Join(err, d.Close())
	}
	s.backends[i], s.locks[i] = b, b.Lock(name, nil)
	s.prompt = d.Guarantees().Has(drivers.Prompt)
	return nil
}

func (s *stopwatch) close() {
	for _, b := range s.backends {
		if b != nil {
			_ = b.Close()
		}
	}
}

func (s *stopwatch) pair(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	l, err := s.locks[0].TryAcquire(ctx)
	if err != nil {
		return 0, err
	}
	err = l.Release(ctx)
	return time.Since(start), err
}

// handoff holds the lock through one client while the other waits for it.
func (s *stopwatch) handoff(ctx context.Context, held time.Duration) (time.Duration, error) {
	l, err := s.locks[0].Acquire(ctx)
	if err != nil {
		return 0, err
	}
	type got struct {
		lease lock.Lease
		at    time.Time
		err   error
	}
	waiting := make(chan got, 1)
	go func() {
		lease, err := s.locks[1].Acquire(ctx)
		waiting <- got{lease, time.Now(), err}
	}()
	pause(ctx, held)
	start := time.Now()
	err = l.Release(ctx)
	next := <-waiting
	if err := errors.Join(err, next.err); err != nil {
		return 0, err
	}
	return next.at.Sub(start), next.lease.Release(ctx)
}

// Bench is Measure for go test -bench: the sub-benchmarks pair and handoff, in
// ns/op. The holding time of a hand-off is not counted.
func Bench(b *testing.B, c Config) {
	b.Helper()
	s, err := newStopwatch(b.Context(), c.Open, max(10*time.Second, c.TTL))
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	b.Run("pair", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.pair(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("handoff", func(b *testing.B) { benchHandoff(b, s) })
}

func benchHandoff(b *testing.B, s *stopwatch) {
	var sum, most time.Duration
	for b.Loop() {
		d, err := s.handoff(b.Context(), s.holdFor(10*time.Millisecond))
		if err != nil {
			b.Fatal(err)
		}
		sum, most = sum+d, max(most, d)
	}
	b.ReportMetric(float64(sum)/float64(b.N), "ns/op")
	b.ReportMetric(float64(most), "max-ns")
}
