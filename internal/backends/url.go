package backends

import (
	"cmp"
	"time"
)

// URL is the target's URL for a client of its own, with a time to live of at
// least ttl. It may hold a password.
func (t *Target) URL(ttl time.Duration) (string, time.Duration) {
	ttl = max(ttl, cmp.Or(t.pace.session, t.pace.ttl))
	return with(t.url, "lock_ttl", ttl.String()), ttl
}
