//go:build unix

package servers

import (
	"net"
	"sync/atomic"
)

// SetRoot replaces the beginning of the fixed paths.
func SetRoot(dir string) (restore func()) {
	old := root
	root = dir
	return func() { root = old }
}

// StealPorts takes the ports of the next clusters away between their choice and the start of the
// servers, so many times.
func StealPorts(times int64) (stolen *atomic.Int64, restore func()) {
	stolen = new(atomic.Int64)
	var thieves []net.Listener
	reserve = func(count int) (*ports, error) {
		p, err := reservePorts(count)
		if err != nil || stolen.Load() == times {
			return p, err
		}
		stolen.Add(1)
		for _, port := range p.list {
			thief, err := net.Listen("tcp4", hostPort(port))
			if err != nil {
				return nil, err
			}
			thieves = append(thieves, thief)
		}
		return p, nil
	}
	return stolen, func() {
		reserve = reservePorts
		for _, thief := range thieves {
			thief.Close()
		}
	}
}
