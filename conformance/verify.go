package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/lockkit/lock/drivers"
)

// A check that could not tell is tried again, with twice the TTL and the slack
// each time: five times if the machine is too slow for it, three times if what
// it saw is most likely a broken rule.
const (
	maxAttempts = 5
	maxDoubts   = 3
)

// A suite is one call of Verify.
type suite struct {
	Config
	shared   [3]drivers.Driver // clients for checks that need no own ones
	promised drivers.Guarantee
	longTTL  time.Duration // for grants that should not expire while a check runs
	progress sync.Mutex
}

// open opens the shared clients. Three are enough for a holder, its successor
// and a witness.
func open(ctx context.Context, c Config) (*suite, error) {
	if c.Open == nil {
		return nil, errors.New("Config.Open is nil")
	}
	s := &suite{Config: c}
	for i := range s.shared {
		d, err := openOne(ctx, c)
		if err != nil {
			s.close()
			return nil, err
		}
		s.shared[i] = d
	}
	err := protect(func() error {
		s.promised = s.shared[0].Guarantees()
		s.longTTL = s.findLongTTL(ctx)
		return nil
	})
	return s, err
}

func openOne(ctx context.Context, c Config) (d drivers.Driver, err error) {
	err = protect(func() (err error) {
		d, err = c.Open(ctx)
		return err
	})
	if err == nil && d == nil {
		err = errors.New("Open returned neither a driver nor an error")
	}
	return d, err
}

// findLongTTL looks for a TTL that outlasts any check. ZooKeeper keeps no
// longer one than its session's.
func (s *suite) findLongTTL(ctx context.Context) time.Duration {
	for _, ttl := range []time.Duration{max(10*time.Second, 10*s.TTL), 4 * s.TTL, 2 * s.TTL} {
		e := &env{suite: s, id: "probe"}
		req := e.request(e.name(), ttl)
		_, err := s.shared[0].TryAcquire(ctx, req)
		if err == nil || !isConfig(err) {
			_ = s.shared[0].Release(ctx, drivers.Grant{Name: req.Name, Owner: req.Owner})
			return ttl
		}
	}
	return s.TTL
}

func (s *suite) close() {
	var all sync.WaitGroup
	for _, d := range s.shared {
		if d != nil {
			all.Go(func() { _ = protect(d.Close) })
		}
	}
	waitAtMost(&all, 10*time.Second)
}

// all runs the checks: the slow ones first, so that none is waited for at the
// end, and those that disturb others last and one by one.
func (s *suite) all(ctx context.Context, checks []Check) []Result {
	results := make([]Result, len(checks))
	some := func(parallel int, of func(Check) bool) {
		turns := make(chan struct{}, parallel)
		var running sync.WaitGroup
		for _, i := range startOrder(checks, of) {
			turns <- struct{}{}
			running.Go(func() {
				results[i] = s.one(ctx, checks[i])
				<-turns
			})
		}
		running.Wait()
	}
	some(s.Parallel, func(c Check) bool { return !c.alone })
	some(1, func(c Check) bool { return c.alone })
	return results
}

func startOrder(checks []Check, of func(Check) bool) []int {
	var slow, quick []int
	for i, check := range checks {
		switch {
		case !of(check):
		case check.slow:
			slow = append(slow, i)
		default:
			quick = append(quick, i)
		}
	}
	return append(slow, quick...)
}

func (s *suite) one(ctx context.Context, check Check) Result {
	start := time.Now()
	err := s.supervise(ctx, check)
	var p *panicked
	if errors.As(err, &p) {
		s.Logf("%s: %s: %v\n%s", s.Name, check.ID, p, p.stack)
	}
	status, why := verdict(check, err)
	res := s.waive(Result{ID: check.ID, Promise: check.Promise, Status: status, Why: why})
	res.Took = time.Since(start)
	s.progress.Lock()
	defer s.progress.Unlock()
	s.Progress(res)
	return res
}

// supervise bounds a check in time even if the driver ignores its contexts.
func (s *suite) supervise(ctx context.Context, check Check) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.attempts(ctx, check) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(5 * time.Second):
		return fmt.Errorf("the check hangs: a call of the driver did not return 5s after its context ended (%w)", ctx.Err())
	}
}

// attempts repeats a check that could not tell, with a longer TTL each time.
func (s *suite) attempts(ctx context.Context, check Check) error {
	var err error
	for n := range maxAttempts {
		start := time.Now()
		err = s.attempt(ctx, check, 1<<n)
		var open *inconclusive
		if !errors.As(err, &open) {
			return err
		}
		s.Logf("%s: %s: attempt %d could not tell: %v", s.Name, check.ID, n+1, err)
		if open.giveUp != nil && n >= maxDoubts-1 {
			return open.giveUp
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 3*time.Since(start) {
			break // the next attempt would take about twice as long
		}
	}
	return &unproven{err.Error()}
}

func (s *suite) attempt(ctx context.Context, check Check, scale time.Duration) error {
	e := &env{
		suite: s, id: check.ID, scale: scale, ttl: min(s.TTL*scale, s.longTTL), slack: s.Slack * scale,
		a: s.shared[0], b: s.shared[1], c: s.shared[2],
	}
	defer e.cleanUp()
	return protect(func() error {
		bit, optional := promises[check.Promise]
		if optional && !s.promised.Has(bit) {
			return e.looksAbsent(ctx, check.Promise, bit)
		}
		return check.run(ctx, e)
	})
}

// verdict turns a check's error into a status.
func verdict(check Check, err error) (Status, string) {
	var u *unproven
	var a *absent
	switch {
	case err == nil:
		return Passed, ""
	case errors.As(err, &u):
		return Unproven, u.why
	case errors.As(err, &a):
		return Absent, a.why
	default:
		return Failed, check.Rule + ": " + err.Error()
	}
}

// waive takes nothing but a failure for what was waived: of a check that is
// absent or unproven nothing was seen.
func (s *suite) waive(res Result) Result {
	reason, waived := s.Waive[res.ID]
	switch {
	case waived && res.Status == Passed:
		res.Status, res.Why = Failed, "is waived but passes; the waiver said: "+reason
	case waived && res.Status == Failed:
		res.Status, res.Why = Waived, reason
	}
	return res
}

// An inconclusive check could not tell, because what it needs was spoiled by
// slowness. It is tried again; if that does not help either it is unproven, or
// fails with giveUp.
type inconclusive struct {
	why    string
	giveUp error
}

func (i *inconclusive) Error() string { return i.why }

func tooSlow(format string, args ...any) error {
	return &inconclusive{why: "too slow to tell: " + fmt.Sprintf(format, args...)}
}

// unless fails with err if it is still so after the last attempt.
func unless(err error) error { return &inconclusive{why: err.Error(), giveUp: err} }

type unproven struct{ why string }

func (u *unproven) Error() string { return u.why }

type absent struct{ why string }

func (a *absent) Error() string { return a.why }

type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// protect turns a panic into an error.
func protect(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicked{p, debug.Stack()}
		}
	}()
	return f()
}

// together runs f(0) … f(n-1) at once and joins what they return. Checks use
// it for every goroutine: a panic of a driver must not end the program.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = protect(func() error { return f(i) }) })
	}
	all.Wait()
	return first(errs)
}

// first returns the error that says most: a broken rule before a check that
// could not tell.
func first(errs []error) error {
	clear := slices.IndexFunc(errs, func(err error) bool {
		var open *inconclusive
		return err != nil && !errors.As(err, &open)
	})
	if clear >= 0 {
		return errs[clear]
	}
	return errors.Join(errs...)
}

func waitAtMost(all *sync.WaitGroup, bound time.Duration) {
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(bound):
	}
}

func isConfig(err error) bool {
	var c *drivers.ConfigError
	return errors.As(err, &c)
}
