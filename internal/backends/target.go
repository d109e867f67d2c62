package backends

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lockkit/lock/conformance"
	"github.com/lockkit/lock/conformance/servers"
	"github.com/lockkit/lock/drivers"
)

// Where the servers of a target come from.
const (
	Started = servers.Started
	Given   = servers.Given
)

// A Target is a backend with its servers at hand.
type Target struct {
	Backend
	Source  string // Started or Given
	Servers int    // how many
	Version string // as far as it is known before Meet

	url     string // may hold a password
	pace    pace
	cluster *servers.Cluster // nil if given by URL, and for memory
	relays  relays
}

// Options say how servers are started.
type Options struct {
	Quick bool
	Logf  func(format string, args ...any) // as in servers.Options
}

// Start starts the servers of a backend, or takes the running ones that the
// environment names. The error is a *servers.MissingError if there are none.
// The caller closes the target.
func Start(ctx context.Context, b Backend, o Options) (*Target, error) {
	if b.Product == "" {
		return &Target{Backend: b, Source: Started, url: "mem://lockkit-" + rand.Text(), pace: b.started}, nil
	}
	c, err := servers.Start(ctx, b.Product, servers.Options{Members: b.members(o.Quick), Logf: o.Logf})
	if err != nil {
		return nil, err
	}
	t := &Target{
		Backend: b, Source: c.Source.Kind, Servers: len(c.Nodes), Version: c.Source.Version,
		url: b.url(c), pace: b.started, cluster: c,
	}
	if b.mode != "" {
		t.url = with(t.url, "lock_mode", b.mode)
	}
	if t.Source == Given {
		t.pace = b.ownPace()
	}
	return t, nil
}

// At is the backend on running servers. It sends nothing. The error is a
// *drivers.ConfigError if the URL is not one of the backend.
func At(b Backend, rawURL string) (*Target, error) {
	u, err := drivers.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(b.schemes, u.Scheme) {
		return nil, &drivers.ConfigError{
			Key: "scheme", Value: u.Scheme, Problem: "is not one of " + b.Name,
			Fix: "write the URL like " + b.schemes[0] + "://…",
		}
	}
	// Package lock's settings must be right. They play no part in what is
	// checked: the suite chooses the times itself.
	if _, err := u.TakeSettings(); err != nil {
		return nil, err
	}
	if b.mode != "" {
		switch mode := u.TakeString("lock_mode", ""); mode {
		case b.mode:
		case "":
			rawURL = with(rawURL, "lock_mode", b.mode)
		default:
			return nil, &drivers.ConfigError{Key: "lock_mode", Value: mode, Problem: "is not the one of " + b.Name, Fix: "leave it out"}
		}
	}
	return &Target{Backend: b, Source: Given, Servers: len(u.Nodes), url: rawURL, pace: b.ownPace()}, nil
}

// ownPace is the pace of servers that were not started by package servers.
func (b Backend) ownPace() pace {
	if b.given != (pace{}) {
		return b.given
	}
	return b.started
}

// TTL is the shortest time to live that the suite asks for: the longer it is,
// the longer the suite takes.
func (t *Target) TTL() time.Duration { return t.pace.ttl }

// SetTTL has the suite use another time to live.
func (t *Target) SetTTL(ttl time.Duration) {
	t.pace.ttl = ttl
	if t.pace.session != 0 {
		t.pace.session = 2 * ttl
	}
}

// String is where the servers are, without a password.
func (t *Target) String() string {
	if t.OneProcess {
		return InProcess
	}
	u, err := drivers.ParseURL(t.url)
	if err != nil {
		return t.Name // the URL was parsed before
	}
	return u.String()
}

// Open makes a new client.
func (t *Target) Open(ctx context.Context) (drivers.Driver, error) {
	return t.open(ctx, nil)
}

// open makes a new client, through relays if there is someone to keep them.
func (t *Target) open(ctx context.Context, keep *relays) (drivers.Driver, error) {
	u, err := drivers.ParseURL(t.url)
	if err != nil {
		return nil, err
	}
	if _, err := u.TakeSettings(); err != nil {
		return nil, err
	}
	u.TTL = cmp.Or(t.pace.session, t.pace.ttl)
	if keep == nil {
		return drivers.Open(ctx, u)
	}
	return keep.open(ctx, u)
}

// Meet opens a client, reads what the live service tells, and closes it. It
// comes before Config: a given server that keeps no such long sessions as usual
// gets shorter ones.
func (t *Target) Meet(ctx context.Context) (drivers.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	d, err := t.Open(ctx)
	var fault *drivers.ConfigError
	if errors.As(err, &fault) && fault.Key == "lock_ttl" && t.pace == t.given {
		t.pace = t.started
		d, err = t.Open(ctx)
	}
	if err != nil {
		return drivers.Report{}, err
	}
	defer d.Close()
	return t.ask(ctx, d), nil
}

// aloneWarning is what a server warns of that has no other members.
const aloneWarning = "stands alone"

// foreseen tells whether a warning is of what we chose ourselves: one server
// alone, for a quick comparison.
func (t *Target) foreseen(warning string) bool {
	return t.Source == Started && t.Servers == 1 && strings.Contains(warning, aloneWarning)
}

// ask falls back to what is known anyway: not every driver is a Checker, and
// not every server lets itself be asked.
func (t *Target) ask(ctx context.Context, d drivers.Driver) drivers.Report {
	var r drivers.Report
	if c, ok := d.(drivers.Checker); ok {
		r, _ = c.Check(ctx)
	}
	r.Warnings = slices.DeleteFunc(slices.Clone(r.Warnings), t.foreseen)
	if r.Product == "" {
		r.Product = string(t.Product)
	}
	if r.Version == "" {
		r.Version = t.Version
	}
	if len(r.Promises) == 0 {
		for _, g := range drivers.Guarantees {
			r.Promises = append(r.Promises, drivers.Promise{Guarantee: g, Made: d.Guarantees().Has(g)})
		}
	}
	return r
}

// Config is how the conformance suite checks the target.
func (t *Target) Config() conformance.Config {
	c := conformance.Config{
		Name:  t.Name,
		TTL:   t.pace.ttl,
		Slack: t.pace.slack,
		Open:  t.Open,
		Waive: t.waive,
	}
	if t.lively {
		c.Open = func(ctx context.Context) (drivers.Driver, error) { return t.open(ctx, &t.relays) }
		c.Silence = t.relays.silence
	}
	if t.cluster != nil && t.Source == Started {
		c.Restart = t.cluster.Restart
	}
	return c
}

// MeasureConfig is how the target's speed is measured. A quick measurement
// takes two or three seconds where waiters poll, and one or two elsewhere: a lease
// that pollers wait for is held for 0.4 s.
func (t *Target) MeasureConfig(quick bool) conformance.MeasureConfig {
	c := conformance.MeasureConfig{Open: t.Open, TTL: t.pace.session}
	if quick {
		c.Pairs, c.For, c.Handoffs, c.Hold = 100, 2500*time.Millisecond, 5, 20*time.Millisecond
	}
	return c
}

// Redact takes the passwords of the URL out of a text. Drivers keep them out of
// their errors; this is for the day on which one does not.
func (t *Target) Redact(text string) string {
	u, err := drivers.ParseURL(t.url)
	if err != nil {
		return text
	}
	for _, n := range u.Nodes {
		for _, secret := range []string{n.Password, url.PathEscape(n.Password), url.QueryEscape(n.Password)} {
			if len(secret) > 3 { // else it may be part of any word
				text = strings.ReplaceAll(text, secret, "xxxxx")
			}
		}
	}
	return text
}

// Close ends what was started.
func (t *Target) Close() {
	t.relays.close()
	if t.cluster != nil {
		t.cluster.Stop()
	}
}

// Look tells where the servers of a backend would come from, and starts
// none. The error is a *servers.MissingError if there are none.
func (b Backend) Look() (servers.Source, error) {
	if b.Product == "" {
		return servers.Source{Kind: Started}, nil
	}
	return servers.Look(b.Product)
}

// Needs describes the servers of a backend, such as "5 redis".
func (b Backend) Needs(quick bool) string {
	switch n := b.members(quick); {
	case b.Product == "":
		return "no server"
	case n == 1:
		return "1 " + string(b.Product)
	default:
		return fmt.Sprintf("%d %s", n, b.Product)
	}
}
