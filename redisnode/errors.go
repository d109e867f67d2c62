package redisnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkit/lock/drivers"
)

// explain tells what an error of the client library means under the contract.
func (n *Node) explain(ctx context.Context, err error) error {
	if ended := drivers.ContextEnd(ctx); ended != nil {
		return n.unanswered(ended)
	}
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, net.ErrClosed) {
		return drivers.ErrClosed
	}
	if errors.Is(err, context.DeadlineExceeded) { // not ours: the dialler's
		return drivers.Unavailable(n.errorf("no connection within %v%s", n.client.Options().DialTimeout, n.tlsHint()))
	}
	var fault *drivers.ConfigError
	if errors.As(err, &fault) { // of the client's OnConnect
		return err
	}
	err = n.redact(err)
	if fault := n.misconfigured(err); fault != nil {
		return fault
	}
	var reply redis.Error
	if errors.As(err, &reply) && !passes(reply) {
		return n.errorf("%w", err)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return drivers.NotSent(n.errorf("%w: is it running, and is this its address?", err))
	}
	return drivers.Unavailable(n.errorf("%w", err))
}

// unanswered is the error of a call that outlived its context.
func (n *Node) unanswered(ended error) error {
	return drivers.Unanswered(n.errorf("no answer: %w", ended))
}

// tlsHint is for a server that waits for the end of what it does not take for
// the beginning of TLS.
func (n *Node) tlsHint() string {
	if n.client.Options().TLSConfig == nil {
		return ""
	}
	return "; use redis:// if it does not speak TLS"
}

func (n *Node) errorf(format string, args ...any) error {
	return fmt.Errorf("redis "+n.addr+": "+format, args...)
}

// redact keeps the password out of errors: an old server answers a command
// that it does not know with the command's arguments.
func (n *Node) redact(err error) error {
	password := n.client.Options().Password
	if password == "" || !strings.Contains(err.Error(), password) {
		return err
	}
	text := strings.ReplaceAll(err.Error(), password, "xxxxx")
	var reply redis.Error
	if errors.As(err, &reply) {
		return hiddenReply(text)
	}
	return errors.New(text)
}

// hiddenReply is an error reply of the server without the password.
type hiddenReply string

func (r hiddenReply) Error() string { return string(r) }
func (hiddenReply) RedisError()     {}

// passing are the error replies of a server that may soon serve again.
var passing = []string{
	"LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF", "OOM",
	"max number of clients reached",
}

func passes(reply redis.Error) bool {
	for _, prefix := range passing {
		if redis.HasErrorPrefix(reply, prefix) {
			return true
		}
	}
	return false
}

// refusals are the error replies that only a change of the settings can mend.
var refusals = []struct {
	reply string
	fault drivers.ConfigError
}{
	{"NOAUTH", drivers.ConfigError{Key: "password", Problem: "is needed", Fix: "write the URL like redis://:password@host:6379"}},
	{"WRONGPASS", drivers.ConfigError{Key: "password", Problem: "or user is wrong, or the user is disabled", Fix: "see ACL LIST on the server"}},
	{"invalid password", drivers.ConfigError{Key: "password", Problem: "is wrong", Fix: "see requirepass on the server"}},
	{"NOPERM", drivers.ConfigError{Key: "user", Problem: "may not do what locks need", Fix: "allow it +@scripting +@string +@keyspace +info +time ~PREFIX:*"}},
	{"DB index is out of range", drivers.ConfigError{Key: "path", Problem: "is a database number that the server does not have", Fix: "use a lower one, such as 0"}},
	{"MOVED", drivers.ConfigError{Key: "host", Problem: "is a node of a cluster", Fix: "use a standalone server"}},
}

// misconfigured is nil unless the settings are to blame.
func (n *Node) misconfigured(err error) error {
	for _, r := range refusals {
		if redis.HasErrorPrefix(err, r.reply) {
			fault := r.fault
			fault.Problem += fmt.Sprintf(" (redis %s: %v)", n.addr, err)
			return &fault
		}
	}
	var plain tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &plain):
		return &drivers.ConfigError{Key: "scheme", Value: "rediss", Problem: "is for TLS, which redis " + n.addr + " does not speak", Fix: "use redis://"}
	case errors.As(err, &cert):
		return &drivers.ConfigError{Key: "host", Value: n.addr, Problem: "has a certificate that can't be verified: " + cert.Err.Error(),
			Fix: "have the system trust its authority, or give redisnode.New a client with a tls.Config"}
	case strings.HasPrefix(err.Error(), "redis: can't parse"), strings.HasPrefix(err.Error(), "redis: invalid reply"):
		return &drivers.ConfigError{Key: "host", Value: n.addr, Problem: "does not speak the Redis protocol", Fix: "check the port; use rediss:// if it expects TLS"}
	}
	return nil
}
