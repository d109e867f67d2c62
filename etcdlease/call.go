package etcdlease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockkit/lock/drivers"
)

// patience is how long a member may take before another one is asked.
const patience = 500 * time.Millisecond

// insist sends a request that may be sent twice. It sends it again at once when
// it has failed for want of a member that serves, and again and again while
// there is no answer and another member to ask: the client takes them in turn.
// What a leader was asked just before it died is never answered. tries is how
// often the request was sent.
func insist[T any](ctx context.Context, client *clientv3.Client, send func(context.Context) (T, error)) (answer T, tries int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type reply struct {
		answer T
		err    error
	}
	replies := make(chan reply)
	pending := 0
	try := func() {
		tries, pending = tries+1, pending+1
		go func() {
			a, err := send(ctx)
			select {
			case replies <- reply{a, err}:
			case <-ctx.Done():
			}
		}()
	}
	try()
	silence := time.NewTicker(patience)
	defer silence.Stop()
	for {
		select {
		case r := <-replies:
			pending--
			switch {
			case !transient(r.err):
				return r.answer, tries, r.err
			case tries == 1:
				try()
			case pending == 0:
				return r.answer, tries, r.err
			}
		case <-silence.C:
			if len(client.Endpoints()) > 1 {
				try()
			}
		case <-ctx.Done():
			return answer, tries, ctx.Err()
		}
	}
}

// code is the status of an error, be it gRPC's or etcd's.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// transient tells whether an error is trouble in reaching or serving that may
// pass.
func transient(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, drivers.ErrUnavailable), errors.Is(err, rpctypes.ErrTooManyRequests):
		return true
	case errors.Is(err, drivers.ErrLost), errors.Is(err, drivers.ErrHeld):
		return false
	}
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented, codes.DataLoss, codes.ResourceExhausted:
		return false
	}
	return true
}

// A cluster is what errors tell of a cluster.
type cluster struct {
	servers []string
	prefix  string
}

// addresses leaves out schemes, and whatever may stand before an @.
func addresses(endpoints []string) []string {
	var all []string
	for _, e := range endpoints {
		if _, rest, ok := strings.Cut(e, "://"); ok {
			e = rest
		}
		all = append(all, e[strings.LastIndexByte(e, '@')+1:])
	}
	return all
}

// explain tells what an error of the client library means under the contract.
// ctx is the caller's.
func (c cluster) explain(ctx context.Context, err error) error {
	var config *drivers.ConfigError
	switch {
	case err == nil, errors.Is(err, drivers.ErrLost), errors.Is(err, drivers.ErrHeld), errors.As(err, &config):
		return err
	}
	if ended := drivers.ContextEnd(ctx); ended != nil {
		return c.unanswered(ended)
	}
	if config := c.misconfigured(err); config != nil {
		return config
	}
	if transient(err) {
		return drivers.Unavailable(c.errorf("%w", plain(err)))
	}
	return c.errorf("%w", err)
}

// explain says ErrClosed for what Close has cut short.
func (d *Driver) explain(ctx context.Context, err error) error {
	if d.life.Err() != nil && transient(err) && ctx.Err() == nil {
		return drivers.ErrClosed
	}
	return d.cluster.explain(ctx, err)
}

// unanswered is the error of a call that outlived its context.
func (c cluster) unanswered(ended error) error {
	return drivers.Unanswered(c.errorf("no answer: %w", ended))
}

// refusals are the answers that only a change of the settings can mend.
var refusals = []struct {
	answer error
	fault  drivers.ConfigError
}{
	{rpctypes.ErrAuthFailed, drivers.ConfigError{Key: "password", Problem: "or user is wrong", Fix: "see etcdctl user list"}},
	{rpctypes.ErrUserEmpty, drivers.ConfigError{Key: "user", Problem: "is needed", Fix: "write the URL like etcd://user:password@host:2379"}},
	{rpctypes.ErrPermissionDenied, drivers.ConfigError{Key: "user", Problem: "may not use the keys of locks",
		Fix: "allow it: etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX/"}},
}

// misconfigured is nil unless the settings are to blame.
func (c cluster) misconfigured(err error) error {
	for _, r := range refusals {
		if errors.Is(err, r.answer) {
			fault := r.fault
			fault.Problem += fmt.Sprintf(" (%v)", c.errorf("%w", err))
			fault.Fix = strings.ReplaceAll(fault.Fix, "PREFIX", c.prefix)
			return &fault
		}
	}
	return nil
}

func (c cluster) errorf(format string, args ...any) error {
	return fmt.Errorf("etcd "+strings.Join(c.servers, ",")+": "+format, args...)
}

// plain makes the driver's own bound readable, and hides its error: it must not
// be taken for that of the caller's context.
func plain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || code(err) == codes.DeadlineExceeded {
		return errors.New("no answer in time")
	}
	return err
}
