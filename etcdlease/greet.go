package etcdlease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/lockkit/lock/drivers"
)

// meet makes sure that the cluster answers and lets us read and write. The
// transaction never puts anything, for no revision is below zero.
func (d *Driver) meet(ctx context.Context, bound time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	root := d.prefix + "/"
	_, _, err := insist(bounded, d.client, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return d.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(root), "<", 0)).
			Then(clientv3.OpPut(root, "")).
			Else(clientv3.OpGet(root, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(1))).
			Commit()
	})
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return drivers.Unavailable(d.errorf("no answer within %v: does it run, and has it a leader?", bound))
	}
	return d.explain(ctx, err)
}

// greet asks each member for its status, and returns when the first answers.
// The client would wait for ever for a server that is not there, and not tell
// why.
func greet(ctx context.Context, config clientv3.Config) error {
	bounded, cancel := context.WithTimeout(ctx, config.DialTimeout)
	defer cancel()
	servers := addresses(config.Endpoints)
	answers := make(chan error, len(servers))
	for _, addr := range servers {
		go func() { answers <- knock(bounded, config, addr) }()
	}
	var faults []error
	for range servers {
		err := <-answers
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return unmet(ctx, faults)
}

// knock returns nil if there is an etcd, whatever it says.
func knock(ctx context.Context, config clientv3.Config, addr string) error {
	creds := insecure.NewCredentials()
	if config.TLS != nil {
		creds = credentials.NewTLS(config.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return cluster{servers: []string{addr}}.errorf("%w", err)
	}
	defer conn.Close()
	_, err = pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	var answer rpctypes.EtcdError
	if err == nil || errors.As(rpctypes.Error(err), &answer) {
		return nil
	}
	return stranger(addr, config.DialTimeout, err)
}

// strangers are what the errors of gRPC say of something that is not an etcd,
// or does not want to be spoken to in this way.
var strangers = []struct {
	text  string
	fault drivers.ConfigError
}{
	{"first record does not look like a TLS handshake", drivers.ConfigError{Key: "scheme", Value: "etcds", Problem: "asks for TLS and the server has none", Fix: "write etcd://"}},
	{"x509:", drivers.ConfigError{Key: "host", Problem: "has a certificate that is not to be trusted", Fix: "use a name that stands in it, or make a client with its authority and give it to etcdlease.New"}},
	{"tls:", drivers.ConfigError{Key: "host", Problem: "refuses the TLS connection", Fix: "if it wants a certificate from us, make a client with it and give it to etcdlease.New"}},
	{"authentication handshake failed", drivers.ConfigError{Key: "scheme", Value: "etcds", Problem: "asks for TLS and the server closes the connection", Fix: "write etcd:// if it has none"}},
	{"server preface", drivers.ConfigError{Key: "host", Problem: "does not answer as an etcd does", Fix: "write etcds:// if it speaks TLS; etcd's port for clients is " + defaultPort + " as a rule"}},
	{"unknown service", drivers.ConfigError{Key: "host", Problem: "does not answer as an etcd does", Fix: "etcd's port for clients is " + defaultPort + " as a rule"}},
}

// stranger tells what is the matter with a server that did not answer as etcd
// does.
func stranger(addr string, bound time.Duration, err error) error {
	text := status.Convert(err).Message()
	for _, s := range strangers {
		if strings.Contains(text, s.text) {
			fault := s.fault
			fault.Problem += fmt.Sprintf(" (%s: %s)", addr, text)
			return &fault
		}
	}
	if code(err) == codes.DeadlineExceeded {
		text = fmt.Sprintf("no answer within %v", bound)
	}
	return cluster{servers: []string{addr}}.errorf("%s", text)
}

// unmet chooses between the faults of all members: what the user must change
// comes first, for the others may have gone by then.
func unmet(ctx context.Context, faults []error) error {
	if ctx.Err() != nil {
		faults = append(faults, ctx.Err())
	}
	err := errors.Join(faults...)
	var config *drivers.ConfigError
	switch {
	case errors.As(err, &config):
		return config
	case errors.Is(err, context.Canceled):
		return err
	}
	return drivers.Unavailable(fmt.Errorf("%w: is it running, and is this its address?", err))
}
