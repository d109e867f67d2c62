package backends

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/lockkit/lock/drivers"
)

// Relays stand between clients and their servers, so that a client can be cut
// off whose library keeps its session alive by itself. Each client has its own.
type relays struct {
	mu sync.Mutex
	of map[drivers.Driver][]*relay
}

// open opens a driver whose packets go through relays.
func (r *relays) open(ctx context.Context, u *drivers.URL) (drivers.Driver, error) {
	own, err := redirect(u)
	if err == nil {
		var d drivers.Driver
		if d, err = drivers.Open(ctx, u); err == nil {
			r.keep(d, own)
			return d, nil
		}
	}
	for _, one := range own {
		one.close()
	}
	return nil, err
}

// redirect puts a relay in the place of each server of the URL.
func redirect(u *drivers.URL) ([]*relay, error) {
	var own []*relay
	for i := range u.Nodes {
		n := &u.Nodes[i]
		one, err := newRelay(n.Addr(defaultPorts[u.Scheme]))
		if err != nil {
			return own, err
		}
		own = append(own, one)
		n.Host, n.Port = "127.0.0.1", strconv.Itoa(one.listener.Addr().(*net.TCPAddr).Port)
	}
	return own, nil
}

var defaultPorts = map[string]string{"zk": "2181"}

func (r *relays) keep(d drivers.Driver, own []*relay) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[drivers.Driver][]*relay{}
	}
	r.of[d] = own
}

// silence is for conformance.Config.
func (r *relays) silence(d drivers.Driver) (undo func(), err error) {
	r.mu.Lock()
	own := r.of[d]
	r.mu.Unlock()
	if len(own) == 0 {
		return nil, errors.New("the client was not opened through a relay")
	}
	for _, one := range own {
		one.hold()
	}
	return func() {
		for _, one := range own {
			one.resume()
		}
	}, nil
}

func (r *relays) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, own := range r.of {
		for _, one := range own {
			one.close()
		}
	}
	r.of = nil
}

// A relay passes bytes on, or keeps them back: while it holds, its connections
// stay open and nothing arrives, as on a network that loses every packet.
type relay struct {
	listener net.Listener
	to       string
	life     context.Context
	end      context.CancelFunc

	mu   sync.Mutex
	open chan struct{} // closed while bytes may pass
}

func newRelay(to string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, to: to, open: make(chan struct{})}
	close(r.open)
	r.life, r.end = context.WithCancel(context.Background())
	context.AfterFunc(r.life, func() { l.Close() })
	go r.serve()
	return r, nil
}

func (r *relay) serve() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.join(client)
	}
}

// join connects a client with the server until one of them hangs up.
func (r *relay) join(client net.Conn) {
	defer client.Close()
	if !r.wait() {
		return
	}
	server, err := new(net.Dialer).DialContext(r.life, "tcp", r.to)
	if err != nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(r.life, func() { client.Close(); server.Close() })()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(gate{r, to}, from)
		done <- struct{}{}
	}
	go pass(server, client)
	go pass(client, server)
	<-done
}

// A gate writes when the relay lets it.
type gate struct {
	*relay
	to io.Writer
}

func (g gate) Write(p []byte) (int, error) {
	if !g.wait() {
		return 0, net.ErrClosed
	}
	return g.to.Write(p)
}

// wait returns false if the relay was closed.
func (r *relay) wait() bool {
	r.mu.Lock()
	open := r.open
	r.mu.Unlock()
	select {
	case <-open:
		return true
	case <-r.life.Done():
		return false
	}
}

func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
		r.open = make(chan struct{})
	default:
	}
}

func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
	default:
		close(r.open)
	}
}

func (r *relay) close() { r.end() }
