package zkelection_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Operations of ZooKeeper's protocol.
const (
	opGetData     = 4
	opGetChildren = 12
	opMulti       = 14
	opClose       = -11
	xidEvent      = -1
)

// A gate stands between a client and its servers, knows where packets begin,
// and does what networks do.
type gate struct {
	t testing.TB

	mu       sync.Mutex
	down     bool
	links    []*link
	lose     int32         // the reply to the next request of this kind is lost, and the connection with it
	hold     int32         // the next request of this kind is held back
	held     chan struct{} // closed when it is
	deliver  chan struct{} // closed to let it go on
	arrived  chan struct{} // closed when it was handed to the server's socket
	requests map[int32]int // by operation
	events   int           // that a watch sent
	deaf     bool          // events are lost
	frozen   bool          // connections are made and nothing comes back
	greeting []byte        // the server's last
	timeout  time.Duration // that servers grant from now on; zero: their own
	server   string
}

func newGate(t testing.TB) *gate { return &gate{t: t, requests: map[int32]int{}} }

// A link is one connection through a gate.
type link struct {
	client, server net.Conn
	lost           int32 // the request whose reply is lost
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

func (g *gate) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return nil, net.ErrClosed
	}
	server, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	l := &link{client: far, server: server}
	g.links, g.server = append(g.links, l), address
	go g.up(l)
	go g.back(l)
	return near, nil
}

func readFrame(r io.Reader) ([]byte, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

func int32At(frame []byte, at int) int32 { return int32(binary.BigEndian.Uint32(frame[at:])) }

func (g *gate) up(l *link) {
	defer l.server.Close()
	for first := true; ; first = false {
		frame, err := readFrame(l.client)
		if err != nil {
			return
		}
		var late bool
		if !first {
			late = g.request(l, int32At(frame, 4), int32At(frame, 8))
		}
		_, err = l.server.Write(frame)
		if late {
			close(g.arrived)
		}
		if err != nil {
			return
		}
	}
}

// request counts a request and does to it what was asked for. It returns true
// if the request was held back.
func (g *gate) request(l *link, xid, op int32) bool {
	g.mu.Lock()
	g.requests[op]++
	if op == g.lose {
		l.lost, g.lose = xid, 0
	}
	late := op == g.hold
	if late {
		g.hold = 0
		close(g.held)
	}
	g.mu.Unlock()
	if late {
		<-g.deliver
	}
	return late
}

func (g *gate) back(l *link) {
	defer l.close()
	for first := true; ; first = false {
		frame, err := readFrame(l.server)
		if err != nil || !first && l.loses(g, frame) {
			return
		}
		if g.swallows(frame, first) {
			continue
		}
		if _, err := l.client.Write(frame); err != nil {
			return
		}
	}
}

// loses tells whether this is the reply that gets lost with the connection.
func (l *link) loses(g *gate, frame []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return l.lost != 0 && int32At(frame, 4) == l.lost
}

// swallows tells whether a reply never arrives.
func (g *gate) swallows(frame []byte, first bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen {
		return true
	}
	if first {
		g.greeting = frame
		if g.timeout > 0 {
			binary.BigEndian.PutUint32(frame[8:], uint32(g.timeout.Milliseconds()))
		}
		return false
	}
	if int32At(frame, 4) != xidEvent {
		return false
	}
	g.events++
	return g.deaf
}

// loseEvents loses all that watches tell from now on.
func (g *gate) loseEvents() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deaf = true
}

// freeze keeps back all that the servers say, until thaw.
func (g *gate) freeze() { g.setFrozen(true) }
func (g *gate) thaw()   { g.setFrozen(false) }

func (g *gate) setFrozen(frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = frozen
}

// reconnect cuts the client off and grants it another time-out.
func (g *gate) reconnect(timeout time.Duration) {
	g.mu.Lock()
	g.timeout = timeout
	g.mu.Unlock()
	g.cutClient()
}

func (g *gate) loseReplyTo(op int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lose = op
}

// holdBack holds the next request of a kind; held is closed when there was
// one. The server's side of its connection stays open.
func (g *gate) holdBack(op int32) (held <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = op
	g.held, g.deliver, g.arrived = make(chan struct{}), make(chan struct{}), make(chan struct{})
	return g.held
}

func (g *gate) count(op int32) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests[op]
}

func (g *gate) eventCount() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.events
}

// cutClient ends the client's side of all connections, and leaves to the
// server what is on its way.
func (g *gate) cutClient() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.links {
		l.client.Close()
	}
}

// cut ends all connections and lets no other through.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = true
	for _, l := range g.links {
		l.close()
	}
	g.links = nil
}

func (g *gate) mend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = false
}

// endSession cuts the client off and closes its session at the server. The
// client learns of it after mend.
func (g *gate) endSession() {
	g.t.Helper()
	g.cut()
	g.mu.Lock()
	id, password, server := g.greeting[12:20], g.greeting[20:40], g.server // the length of the password with it
	g.mu.Unlock()
	conn, err := net.Dial("tcp", server)
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	send := func(parts ...[]byte) {
		frame := []byte{}
		for _, p := range parts {
			frame = append(frame, p...)
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
			g.t.Fatal(err)
		}
	}
	send(make([]byte, 4+8), []byte{0, 0, 0x0f, 0xa0}, id, password) // protocol, last zxid, time-out
	if _, err := readFrame(conn); err != nil {
		g.t.Fatal(err)
	}
	op := int32(opClose)
	send([]byte{0, 0, 0, 1}, binary.BigEndian.AppendUint32(nil, uint32(op)))
	if _, err := io.Copy(io.Discard, conn); err != nil {
		g.t.Fatal(err)
	}
}
