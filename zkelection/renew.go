package zkelection

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

// A prover asks the ensemble whether nodes are there. It asks by a transaction
// that changes nothing: only a majority can answer it, while a read would be
// answered by a follower that has lost touch with the others and does not know
// yet that the session ended. Callers that come while a question is under way
// share the next one.
type prover struct {
	conn *zk.Conn

	mu      sync.Mutex
	waiting []*proof
	busy    bool
}

type proof struct {
	path   string
	answer chan error
}

// maxProofs keeps a transaction with long names well below the largest packet
// that a server takes, 1 MB.
const maxProofs = 128

// prove returns nil if the node was there after the call began, zk.ErrNoNode if
// it was not.
func (v *prover) prove(ctx context.Context, nodePath string) error {
	p := &proof{nodePath, make(chan error, 1)}
	v.mu.Lock()
	v.waiting = append(v.waiting, p)
	start := !v.busy
	v.busy = true
	v.mu.Unlock()
	if start {
		go v.work()
	}
	select {
	case err := <-p.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *prover) work() {
	for batch := v.next(); len(batch) > 0; batch = v.next() {
		v.ask(batch)
	}
}

func (v *prover) next() []*proof {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := min(len(v.waiting), maxProofs)
	batch := v.waiting[:n:n]
	v.waiting = v.waiting[n:]
	v.busy = n > 0
	return batch
}

// ask asks until each has an answer: a missing node fails the whole
// transaction, and the others are asked again without it.
func (v *prover) ask(batch []*proof) {
	for len(batch) > 0 {
		answers, err := v.conn.Multi(checks(batch)...)
		missing := firstMissing(answers)
		if !errors.Is(err, zk.ErrNoNode) || missing < 0 || missing >= len(batch) {
			for _, p := range batch {
				p.answer <- err
			}
			return
		}
		batch[missing].answer <- err
		batch = append(batch[:missing:missing], batch[missing+1:]...)
	}
}

func checks(batch []*proof) []any {
	ops := make([]any, len(batch))
	for i, p := range batch {
		ops[i] = &zk.CheckVersionRequest{Path: p.path, Version: anyVersion}
	}
	return ops
}

func firstMissing(answers []zk.MultiResponse) int {
	for i, a := range answers {
		if errors.Is(a.Error, zk.ErrNoNode) {
			return i
		}
	}
	return -1
}
