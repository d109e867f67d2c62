//go:build !linux

package servers

import (
	"math/rand/v2"
	"net"
)

// ports were free a moment ago. Nothing holds them, as only Linux lets a server bind a port that is
// held: if another process takes one, the start is tried again with others.
type ports struct{ list []int }

// The ports lie below those that Linux and macOS give to outgoing connections.
const firstPort, lastPort = 20000, 32000

func reservePorts(count int) (*ports, error) {
	p := &ports{}
	var held []net.Listener // until all are found, so that none is chosen twice
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range 100 * count {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp4", hostPort(port))
		if err != nil {
			continue
		}
		held, p.list = append(held, l), append(p.list, port)
		if len(p.list) == count {
			return p, nil
		}
	}
	return nil, errPortTaken
}

func (p *ports) release() {}
