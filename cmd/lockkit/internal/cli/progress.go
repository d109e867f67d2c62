package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress shows what goes on: lines that stay and, on a terminal, one that
// changes. Elsewhere that one is written now and then, so that a log tells that
// the run is alive.
type progress struct {
	w     io.Writer
	live  bool
	every time.Duration
	began time.Time
	stop  chan struct{}
	ended sync.WaitGroup

	mu     sync.Mutex
	status func() string
}

const (
	redraw    = 200 * time.Millisecond
	heartbeat = 10 * time.Second
	liveWidth = 79 // a longer line would wrap and could not be taken back
	clearLine = "\r\x1b[K"
)

// newProgress begins to show. The caller calls end.
func newProgress(w io.Writer) *progress {
	p := &progress{w: w, live: isTerminal(w), every: heartbeat, began: time.Now(), stop: make(chan struct{})}
	if p.live {
		p.every = redraw
	}
	p.ended.Go(p.tick)
	return p
}

func (p *progress) tick() {
	t := time.NewTicker(p.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			p.mu.Lock()
			p.show()
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// doing says what goes on from now. It is called with no lock of the caller
// held.
func (p *progress) doing(status func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = status
	if p.live {
		p.show()
	}
}

// say writes a line that stays.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if p.live {
		text = clearLine + text
	}
	fmt.Fprintln(p.w, text)
	if p.live {
		p.show()
	}
}

// show needs the lock.
func (p *progress) show() {
	if p.status == nil {
		return
	}
	text := fmt.Sprintf("%3.0fs  %s", time.Since(p.began).Seconds(), p.status())
	if !p.live {
		fmt.Fprintln(p.w, text)
		return
	}
	if runes := []rune(text); len(runes) > liveWidth {
		text = string(runes[:liveWidth-1]) + "…"
	}
	fmt.Fprint(p.w, clearLine+text)
}

// end takes the changing line back.
func (p *progress) end() {
	close(p.stop)
	p.ended.Wait()
	if p.live {
		fmt.Fprint(p.w, clearLine)
	}
}
