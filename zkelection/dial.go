package zkelection

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// A Dialer is the socket side of one *zk.Conn. The client library does not
// tell which time-out the server granted, nor does it tell for sure that it
// put a new session in the place of an expired one; the Dialer reads both off
// the handshake. It also bounds the reads, so that a stopped server does not
// hold the client for ten times its time-out while another one would answer.
//
// Give its method Dial to zk.WithDialer, and use it for one connection only.
type Dialer struct {
	dial zk.Dialer

	mu      sync.Mutex
	current *session
	socket  net.Conn
	err     error // why the last connection failed; nil after a handshake
	shut    bool
}

// A session is one ZooKeeper session with one time-out. Two sessions are the
// same if their pointers are.
//
// Each reconnection negotiates the time-out anew. The holders were promised the
// former one. If the new one is shorter, the service no longer keeps what was
// promised: this counts as the end of the session, though its nodes are still
// there. If it is longer, nobody makes use of that: their margins were made for
// the former one.
type session struct {
	id    int64         // zero until the first handshake, and after an expiry
	ended chan struct{} // closed when the server says so, or another one takes its place
	limit time.Duration // the time-out
}

func newSession(id int64, timeout time.Duration) *session {
	return &session{id: id, ended: make(chan struct{}), limit: timeout}
}

func (s *session) timeout() time.Duration { return s.limit }

// NewDialer makes a Dialer. It connects by dial, which may be nil: plain TCP.
func NewDialer(dial zk.Dialer) *Dialer {
	if dial == nil {
		dial = net.DialTimeout
	}
	return &Dialer{dial: dial, current: newSession(0, 0)}
}

// Dial is a zk.Dialer.
func (d *Dialer) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := d.dial(network, address, timeout)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.shut {
		conn.Close()
		err = net.ErrClosed
	}
	if err != nil {
		d.err = err
		return nil, err
	}
	d.socket = conn
	return &socket{Conn: conn, dialer: d}, nil
}

func (d *Dialer) session() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// greeted takes what a handshake said.
func (d *Dialer) greeted(id int64, timeout time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = nil
	if id != d.current.id || timeout < d.current.timeout() {
		close(d.current.ended)
		d.current = newSession(id, timeout)
	}
}

func (d *Dialer) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *Dialer) lastError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// cut ends the connection for good.
func (d *Dialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	if d.socket != nil {
		d.socket.Close()
	}
}

// A socket reads along while the client greets the server.
type socket struct {
	net.Conn
	dialer *Dialer
	head   []byte // of the server's greeting
	done   bool   // with the greeting
}

// The greeting: length, protocol, time-out (4 bytes each), session (8), password.
const (
	minGreeting  = 32
	maxGreeting  = 256
	headOfLength = 4
	headOfAll    = 20
)

var errNotZooKeeper = errors.New("the server does not speak ZooKeeper's protocol")

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.done {
		return n, err
	}
	if err == nil {
		err = s.greet(p[:n])
	}
	if err != nil {
		s.dialer.failed(err)
		return 0, err
	}
	return n, nil
}

// greet also keeps the client from making a buffer of whatever length another
// protocol's first bytes amount to.
func (s *socket) greet(p []byte) error {
	s.head = append(s.head, p...)
	if len(s.head) < headOfLength {
		return nil
	}
	if n := binary.BigEndian.Uint32(s.head); n < minGreeting || n > maxGreeting {
		return errNotZooKeeper
	}
	if len(s.head) < headOfAll {
		return nil
	}
	timeout := time.Duration(binary.BigEndian.Uint32(s.head[8:])) * time.Millisecond
	s.dialer.greeted(int64(binary.BigEndian.Uint64(s.head[12:])), timeout)
	s.head, s.done = nil, true
	return nil
}

// SetReadDeadline never sets one later than patience from now. The client's own
// for the greeting is of no use: it follows from the time-out that was asked
// for, which may be an hour or a millisecond.
func (s *socket) SetReadDeadline(t time.Time) error {
	limit := time.Now().Add(s.patience())
	if t.After(limit) || !s.done {
		t = limit
	}
	return s.Conn.SetReadDeadline(t)
}

// patience leaves a quarter of the session's time, before the holders' leases
// end, to reach another server. The client sends something every third.
func (s *socket) patience() time.Duration {
	timeout := s.dialer.session().timeout()
	switch {
	case s.done:
		return timeout / 2
	case timeout > 0:
		return min(max(timeout/4, minHandshake), maxHandshake)
	default:
		return maxHandshake
	}
}

// How long a server may take to greet.
const (
	minHandshake = 500 * time.Millisecond
	maxHandshake = 2 * time.Second
)
