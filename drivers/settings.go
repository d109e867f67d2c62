package drivers

import (
	"math"
	"time"
)

// Settings are what package lock itself reads from a URL, the same for every
// driver. A field is zero where nothing was said.
type Settings struct {
	TTL       time.Duration // lock_ttl
	Poll      time.Duration // lock_poll
	TokenBase Token         // lock_token_base
	Note      string        // lock_note
	Need      Guarantee     // lock_need
}

// TakeSettings takes the settings of package lock.
func (u *URL) TakeSettings() (s Settings, err error) {
	if s.TTL, err = u.TakeDuration("lock_ttl", 0); err != nil {
		return s, err
	}
	if s.Poll, err = u.TakeDuration("lock_poll", 0); err != nil {
		return s, err
	}
	base, err := u.TakeInt("lock_token_base", 0, 0, math.MaxInt64)
	if err != nil {
		return s, err
	}
	s.TokenBase = Token(base)
	s.Note = u.TakeString("lock_note", "")
	if need := u.TakeString("lock_need", ""); s.Need.UnmarshalText([]byte(need)) != nil {
		return s, &ConfigError{Key: "lock_need", Value: need, Problem: "is unknown", Fix: "use efficiency, correctness, or promises such as fencing,prompt"}
	}
	return s, nil
}
