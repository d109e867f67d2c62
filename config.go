package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkit/lock/drivers"
)

// openBound is how long Open waits for a service when ctx does not say.
const openBound = 10 * time.Second

// Config is a backend as a configuration file has it. Any decoder that knows
// encoding.TextUnmarshaler fills it; a field that is set overrules the same
// setting in the URL.
type Config struct {
	URL       string    `json:"url" yaml:"url"`
	Need      Guarantee `json:"need,omitempty" yaml:"need,omitempty"` // "efficiency", "correctness", "fencing,prompt", …
	TTL       Duration  `json:"ttl,omitempty" yaml:"ttl,omitempty"`
	Note      string    `json:"note,omitempty" yaml:"note,omitempty"`
	Poll      Duration  `json:"poll,omitempty" yaml:"poll,omitempty"`
	TokenBase Token     `json:"token_base,omitempty" yaml:"token_base,omitempty"`
	Trace     *Trace    `json:"-" yaml:"-"`
}

// Duration is a time.Duration that is written as text, such as "15s".
type Duration time.Duration

// String is the duration in Go's notation.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes Go's notation.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads Go's notation.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration: write it like 15s or 500ms", text)
	}
	*d = Duration(parsed)
	return nil
}

// Open opens the backend; see the function Open.
func (c Config) Open(ctx context.Context) (*Backend, error) { return c.open(ctx, nil) }

func (c Config) open(ctx context.Context, need []Guarantee) (*Backend, error) {
	u, err := drivers.ParseURL(c.URL)
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	b, err := c.openURL(ctx, u, need)
	if err != nil {
		var already *Error
		if errors.As(err, &already) {
			err = already.Err
		}
		return nil, &Error{Op: "open", Name: u.String(), Err: err}
	}
	return b, nil
}

func (c Config) openURL(ctx context.Context, u *drivers.URL, need []Guarantee) (*Backend, error) {
	if err := c.merge(u); err != nil {
		return nil, err
	}
	want := c.Need
	for _, g := range need {
		want |= g
	}
	u.TTL = time.Duration(c.TTL)
	ctx, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	d, err := drivers.Open(ctx, u)
	if err != nil {
		return nil, err
	}
	b, err := newBackend(d, c.options(), u.Scheme)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := b.unmet(ctx, want); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// merge takes the settings that every backend has out of the URL.
func (c *Config) merge(u *drivers.URL) error {
	s, err := u.TakeSettings()
	if err != nil {
		return err
	}
	c.TTL = cmp.Or(c.TTL, Duration(s.TTL), Duration(DefaultTTL))
	c.Poll = cmp.Or(c.Poll, Duration(s.Poll))
	c.TokenBase = cmp.Or(c.TokenBase, s.TokenBase)
	c.Note = cmp.Or(c.Note, s.Note)
	c.Need |= s.Need
	_, err = c.options().withDefaults(nil)
	return err
}

func (c *Config) options() *Options {
	return &Options{TTL: time.Duration(c.TTL), Note: c.Note, Poll: time.Duration(c.Poll), TokenBase: c.TokenBase, Trace: c.Trace}
}
