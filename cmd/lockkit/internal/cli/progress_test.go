package cli

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// A screen collects what is written.
type screen struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestProgressIsPlainLinesWhereNobodyWatches(t *testing.T) {
	var s screen
	p := newProgress(&s)
	p.doing(func() string { return "measuring" })
	p.say("redis: %d passed", 5)
	p.end()
	if got := s.String(); got != "redis: 5 passed\n" {
		t.Errorf("%q", got)
	}
}

func TestALogIsToldNowAndThenThatTheRunIsAlive(t *testing.T) {
	var s screen
	p := &progress{w: &s, every: time.Millisecond, began: time.Now(), stop: make(chan struct{})}
	p.ended.Go(p.tick)
	p.doing(func() string { return "checking" })
	for strings.Count(s.String(), "checking\n") < 2 {
		time.Sleep(time.Millisecond)
	}
	p.end()
}

func TestOnATerminalOneLineChangesAndIsTakenBackAtTheEnd(t *testing.T) {
	var s screen
	p := &progress{w: &s, live: true, every: time.Hour, began: time.Now(), stop: make(chan struct{})}
	p.ended.Go(p.tick)
	p.doing(func() string { return strings.Repeat("x", 200) })
	p.say("a line")
	p.end()
	got := s.String()
	if !strings.Contains(got, clearLine+"a line\n") || !strings.HasSuffix(got, clearLine) {
		t.Errorf("%q", got)
	}
	for _, line := range strings.FieldsFunc(got, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if n := len([]rune(strings.TrimPrefix(line, "\x1b[K"))); n > liveWidth {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}
