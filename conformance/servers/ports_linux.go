package servers

import (
	"errors"
	"math/rand/v2"
	"syscall"
)

// ports are reserved for a cluster from its start until its stop, also while a server of it is down.
//
// A socket that is bound but does not listen holds each of them. Linux lets another socket bind the
// same port if both have SO_REUSEADDR, as every server here does, and refuses it to this function in
// other processes, which binds without; and it gives such a port neither to a bind of port 0 nor to
// an outgoing connection.
type ports struct {
	list    []int
	sockets []int
}

// The ports lie below those that Linux and macOS give to outgoing connections.
const firstPort, lastPort = 20000, 32000

func reservePorts(count int) (*ports, error) {
	p := &ports{}
	for range 100 * count {
		port := firstPort + rand.IntN(lastPort-firstPort)
		socket, err := hold(port)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			p.release()
			return nil, err
		}
		p.list, p.sockets = append(p.list, port), append(p.sockets, socket)
		if len(p.list) == count {
			return p, nil
		}
	}
	p.release()
	return nil, errPortTaken
}

func hold(port int) (socket int, err error) {
	socket, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		// Only now: this bind was to fail if anybody else has the port.
		err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		syscall.Close(socket)
		return 0, err
	}
	return socket, nil
}

func (p *ports) release() {
	if p == nil {
		return
	}
	for _, socket := range p.sockets {
		syscall.Close(socket)
	}
	p.sockets = nil
}
