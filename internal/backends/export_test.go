package backends

import (
	"maps"
	"net"
	"strconv"
)

// Waivers are the checks that a backend can't pass.
func (b Backend) Waivers() map[string]string { return maps.Clone(b.waive) }

// A Relay is a relay for tests.
type Relay struct{ r *relay }

func NewRelay(to string) (Relay, error) {
	r, err := newRelay(to)
	return Relay{r}, err
}

func (r Relay) Addr() string {
	return "127.0.0.1:" + strconv.Itoa(r.r.listener.Addr().(*net.TCPAddr).Port)
}
func (r Relay) Hold()   { r.r.hold() }
func (r Relay) Resume() { r.r.resume() }
func (r Relay) Close()  { r.r.close() }

// Foreseen tells whether a server's warning is kept from the user.
func Foreseen(source string, servers int, warning string) bool {
	return (&Target{Source: source, Servers: servers}).foreseen(warning)
}
