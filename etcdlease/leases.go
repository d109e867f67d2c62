package etcdlease

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	stockSize     = 256 // idle leases that are remembered for each time to live; more of them just end
	revokersAtEnd = 8

	graveTime = 2 * time.Minute // of the lease that graves hang on
	graveRest = time.Minute     // and what a grave has of it at least
)

// A lease is an etcd lease that at most one key hangs on.
type lease struct {
	id    clientv3.LeaseID
	class time.Duration // what was asked for
	ttl   time.Duration // what etcd granted

	mu     sync.Mutex
	proved time.Time // when the last exchange that proved it alive was sent
}

func (l *lease) since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proved
}

func (l *lease) prove(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.After(l.proved) {
		l.proved = sent
	}
}

// age is the time since the lease was proved alive, by whichever clock says
// more: the monotonic one stands still while the machine sleeps.
func (l *lease) age() time.Duration {
	since, now := l.since(), time.Now()
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// A stock grants leases, keeps them alive, and remembers those that nothing
// hangs on for the next acquisitions.
type stock struct {
	life   context.Context
	client *clientv3.Client
	beats  beats

	mu   sync.Mutex
	idle map[time.Duration][]*lease // by class, the last one was used last; nil at the end

	graves  sync.Mutex
	forDead *lease
}

func newStock(life context.Context, client *clientv3.Client) *stock {
	return &stock{
		life: life, client: client, idle: map[time.Duration][]*lease{},
		beats: beats{life: life, client: clientv3.RetryLeaseClient(client)},
	}
}

// take returns a lease that nothing hangs on. One that is granted after ctx
// ended goes into the stock.
func (s *stock) take(ctx context.Context, ttl time.Duration) (*lease, error) {
	class := wholeSeconds(ttl)
	if l := s.pop(class); l != nil {
		return l, nil
	}
	type result struct {
		l   *lease
		err error
	}
	granted := make(chan result)
	go func() {
		l, err := s.grant(s.life, class)
		select {
		case granted <- result{l, err}:
		case <-ctx.Done():
			if err == nil {
				s.put(l)
			}
		}
	}()
	select {
	case r := <-granted:
		return r.l, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *stock) grant(ctx context.Context, class time.Duration) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	sent := time.Now()
	resp, _, err := insist(ctx, s.client, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, int64(class/time.Second))
	})
	if err != nil {
		return nil, err
	}
	return &lease{id: resp.ID, class: class, ttl: time.Duration(resp.TTL) * time.Second, proved: sent}, nil
}

func wholeSeconds(ttl time.Duration) time.Duration {
	return (ttl + time.Second - 1).Truncate(time.Second)
}

// pop takes the lease that was used last and drops those that are about to end.
func (s *stock) pop(class time.Duration) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		idle := s.idle[class]
		if len(idle) == 0 {
			delete(s.idle, class)
			return nil
		}
		l := idle[len(idle)-1]
		s.idle[class] = idle[:len(idle)-1]
		if l.age() < l.ttl*3/4 {
			return l
		}
	}
}

// put gives a lease back that nothing hangs on, and that no request is on its
// way to hang anything on.
func (s *stock) put(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle != nil && len(s.idle[l.class]) < stockSize {
		s.idle[l.class] = append(s.idle[l.class], l)
	}
}

func (s *stock) forget(class time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.idle, class)
}

// freshen renews a lease in the background, if more than a quarter of its time
// is over.
func (s *stock) freshen(ctx context.Context, l *lease) <-chan error {
	done := make(chan error, 1)
	if l.age() < l.ttl/4 {
		close(done)
		return done
	}
	go func() {
		_, err := s.renew(ctx, l)
		done <- err
	}()
	return done
}

// renew begins the time of a lease anew and returns it.
func (s *stock) renew(ctx context.Context, l *lease) (time.Duration, error) {
	sent := time.Now()
	ttl, _, err := insist(ctx, s.client, func(ctx context.Context) (time.Duration, error) {
		return s.beats.once(ctx, l.id)
	})
	if err == nil {
		l.prove(sent)
	}
	return ttl, err
}

// revoke ends a lease, and with it whatever hangs on it or is still to come.
func (s *stock) revoke(ctx context.Context, l *lease) error {
	_, _, err := insist(ctx, s.client, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) {
		return s.client.Revoke(ctx, l.id)
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// revokeAll ends the idle leases. Those that it does not get to end by
// themselves.
func (s *stock) revokeAll(ctx context.Context) {
	queue := make(chan *lease)
	var all sync.WaitGroup
	for range revokersAtEnd {
		all.Go(func() {
			for l := range queue {
				_ = s.revoke(ctx, l)
			}
		})
	}
	for _, l := range s.empty() {
		queue <- l
	}
	close(queue)
	all.Wait()
}

// empty takes all idle leases; none is put back any more.
func (s *stock) empty() []*lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*lease
	for _, idle := range s.idle {
		all = append(all, idle...)
	}
	s.idle = nil
	return all
}

// forGraves is a lease that all graves of a minute hang on. It is never renewed
// and never revoked: they must outlive the driver.
func (s *stock) forGraves(ctx context.Context) (clientv3.LeaseID, error) {
	s.graves.Lock()
	defer s.graves.Unlock()
	if s.forDead == nil || s.forDead.age() > graveTime-graveRest {
		l, err := s.grant(ctx, graveTime)
		if err != nil {
			return 0, err
		}
		s.forDead = l
	}
	return s.forDead.id, nil
}

func (s *stock) forgetGraves(id clientv3.LeaseID) {
	s.graves.Lock()
	defer s.graves.Unlock()
	if s.forDead != nil && s.forDead.id == id {
		s.forDead = nil
	}
}
