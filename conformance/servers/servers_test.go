package servers_test

import (
	"testing"

	"github.com/lockkit/lock/conformance/servers"
)

func TestEachProductStartsAndAnswers(t *testing.T) {
	for _, p := range servers.Products() {
		for _, members := range []int{1, 3} {
			if members == 3 && p == servers.Postgres {
				continue
			}
			t.Run(string(p), func(t *testing.T) {
				c := servers.For(t, p, servers.Options{Members: members})
				t.Log(c.URL(), c.Nodes[0].Pid(), c.Source)
				for _, n := range c.Nodes {
					if err := n.Pause(); err != nil {
						t.Error(err)
					}
					if err := n.Resume(); err != nil {
						t.Error(err)
					}
				}
				n := c.Nodes[0]
				if err := n.Kill(); err != nil {
					t.Error(err)
				}
				if err := n.Restart(t.Context()); err != nil {
					t.Error(err)
				}
				if err := n.RestartEmpty(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
