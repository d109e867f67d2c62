package etcdlease

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// idleBeats is how many keep-alive streams are kept open between renewals.
const idleBeats = 4

// beats are keep-alive streams, each for one renewal at a time. The client's
// KeepAliveOnce opens a stream for each renewal, for which a client with a
// password proves it anew each time, 50 ms and more of the server's work; and
// its KeepAlive does not tell when it sent what was answered.
type beats struct {
	life   context.Context
	client pb.LeaseClient

	mu   sync.Mutex
	idle []*beat
}

type beat struct {
	ctx    context.Context
	cancel context.CancelFunc
	stream pb.Lease_LeaseKeepAliveClient // nil until the first use
}

// once begins the time of a lease anew and returns it, or tells that there is no
// such lease.
func (b *beats) once(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	s := b.take()
	stop := context.AfterFunc(ctx, s.cancel)
	seconds, err := s.send(b.client, id)
	if !stop() || err != nil {
		s.cancel()
	} else {
		b.put(s)
	}
	switch {
	case err != nil:
		b.drop() // of the same connection, perhaps
		return 0, clientv3.ContextError(ctx, err)
	case seconds <= 0:
		return 0, rpctypes.ErrLeaseNotFound
	}
	return time.Duration(seconds) * time.Second, nil
}

func (s *beat) send(client pb.LeaseClient, id clientv3.LeaseID) (seconds int64, err error) {
	if s.stream == nil {
		// A member without a leader ends the stream instead of keeping silent.
		if s.stream, err = client.LeaseKeepAlive(clientv3.WithRequireLeader(s.ctx)); err != nil {
			return 0, err
		}
	}
	// What is wrong with a stream that can't be sent on is told by Recv.
	if err := s.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	resp, err := s.stream.Recv()
	return resp.GetTTL(), err
}

func (b *beats) take() *beat {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.idle); n > 0 {
		s := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return s
	}
	s := &beat{}
	s.ctx, s.cancel = context.WithCancel(b.life)
	return s
}

func (b *beats) put(s *beat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.idle) == idleBeats {
		s.cancel()
		return
	}
	b.idle = append(b.idle, s)
}

// drop closes the idle streams.
func (b *beats) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.idle {
		s.cancel()
	}
	b.idle = nil
}
