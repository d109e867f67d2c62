package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkit/lock/drivers"
)

// The prepared statements of a session, by the names of their files.
const (
	stmtLock   = "advisory_lock"
	stmtFenced = "advisory_fenced"
	stmtInsert = "advisory_insert"
	stmtUnlock = "advisory_unlock"
	stmtSweep  = "advisory_sweep"
	stmtWiden  = "advisory_widen"
)

const (
	// quiet is how long a session waits for the next request before it starts
	// to listen for the server's end, which takes a moment to interrupt.
	quiet = 20 * time.Millisecond
	// batch bounds what is sent at once. Tokens gain little by it: each is a
	// commit, one after the other.
	batch, fencedBatch = 64, 4
	// spare is how long at most a session is kept that holds nothing.
	spare = time.Minute
	// goodbye bounds how long a session takes to end, and is the least time
	// that a server has for an answer.
	goodbye = time.Second
)

// A session is a connection that holds advisory locks. One goroutine speaks on
// it; what the others ask meanwhile is sent together. No context is ever given
// to the connection, only deadlines: the end of a context would end the
// session, and with it every lock.
type session struct {
	d      *Advisory
	class  class
	cancel context.CancelFunc // of connecting
	wake   chan struct{}
	quiet  *time.Timer
	conn   *pgconn.PgConn // of the session's goroutine, but for deadlines

	// Under Advisory.mu:
	holds     map[*hold]bool
	queue     []*op
	asked     []*op         // being sent and answered
	silence   time.Duration // idle_session_timeout as it is
	proved    time.Time     // when the last statement that was answered was sent
	unusedAt  time.Time     // since when it holds nothing
	listening bool
	stopping  bool
	broken    error // it must end
	died      error // why it ended
}

// An op is a statement to be executed on a session.
type op struct {
	stmt   string // empty: nothing but a sign of life
	args   [][]byte
	latest func() [][]byte // the args as they are when all before it is answered: it is sent alone
	answer func(answerOf)  // called once, under Advisory.mu
	done   bool
}

// An answerOf a statement is its first row, or an error.
type answerOf struct {
	row   [][]byte
	sent  time.Time // no later than the statement
	err   error
	ended bool // the session has ended
}

// startSession needs the lock.
func (d *Advisory) startSession(c class) *session {
	ctx, cancel := context.WithTimeout(context.Background(), openBound)
	s := &session{
		d: d, class: c, cancel: cancel, wake: make(chan struct{}, 1), quiet: time.NewTimer(quiet),
		holds: map[*hold]bool{}, silence: c.silence, unusedAt: time.Now(),
	}
	d.sessions[c] = append(d.sessions[c], s)
	d.running.Go(func() { s.run(ctx) })
	return s
}

func (s *session) run(ctx context.Context) {
	err := s.connect(ctx)
	for err == nil {
		var ops []*op
		if ops, err = s.next(); err == nil {
			err = s.exchange(ops)
		}
	}
	told := s.end(err)
	s.cancel()
	if s.conn == nil {
		return
	}
	select {
	case <-told: // and only then may others get the locks
	case <-time.After(goodbye):
	}
	closeConn(s.conn)
}

// submit queues an op. It needs the lock, as all up to silent.
func (s *session) submit(o *op) {
	s.queue = append(s.queue, o)
	s.rouse()
}

// rouse has the goroutine look at the queue.
func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if s.listening {
		s.listening = false
		_ = s.conn.Conn().SetReadDeadline(time.Unix(1, 0))
	}
}

// prove asks for a sign of life, and for an idle_session_timeout that is at
// least silence.
func (s *session) prove(silence time.Duration) *proof {
	p := &proof{answered: make(chan struct{})}
	answer := func(a answerOf) {
		p.err = s.life(a)
		close(p.answered)
	}
	o := &op{answer: answer}
	if silence > s.silence {
		o.stmt, o.args = stmtWiden, [][]byte{[]byte(milliseconds(silence))}
		o.answer = func(a answerOf) {
			if a.err == nil {
				s.silence = max(s.silence, silence)
			}
			answer(a)
		}
	}
	s.submit(o)
	return p
}

// A proof of life is there, or its failure, when answered is closed.
type proof struct {
	answered chan struct{}
	err      error
}

func (s *session) life(a answerOf) error {
	if a.ended {
		return drivers.Lost(drivers.SessionEnded, s.died)
	}
	return s.d.explain(context.Background(), a.err)
}

func (s *session) forget(h *hold) {
	delete(s.holds, h)
	s.unusedAt = time.Now()
}

// stop ends the session from outside.
func (s *session) stop() {
	s.stopping = true
	s.cancel()
	if s.conn != nil && len(s.asked) > 0 {
		_ = s.conn.Conn().SetDeadline(time.Now().Add(goodbye))
	}
	s.rouse()
}

func (s *session) load() int { return len(s.queue) + len(s.asked) }

// silent tells that the server has ended the session by now.
func (s *session) silent() bool {
	return !s.proved.IsZero() && time.Since(s.proved) >= s.silence
}

// next waits for something to send.
func (s *session) next() ([]*op, error) {
	for {
		if ops, err := s.take(); err != nil || len(ops) > 0 {
			return ops, err
		}
		s.quiet.Reset(quiet)
		select {
		case <-s.wake:
		case <-s.quiet.C:
			if err := s.listen(); err != nil {
				return nil, err
			}
		}
	}
}

// take takes the next ops off the queue.
func (s *session) take() ([]*op, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.asked = nil
	switch {
	case s.stopping:
		return nil, drivers.ErrClosed
	case s.broken != nil:
		return nil, s.broken
	case len(s.queue) == 0:
		return nil, nil
	}
	n := batch
	if s.class.fenced {
		n = fencedBatch
	}
	n = alone(s.queue[:min(n, len(s.queue))])
	s.asked = slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	return s.asked, s.await()
}

// alone is how many of the ops go together: one that must be alone does so.
func alone(ops []*op) int {
	i := slices.IndexFunc(ops, func(o *op) bool { return o.latest != nil })
	switch i {
	case -1:
		return len(ops)
	case 0:
		ops[0].args = ops[0].latest()
		return 1
	}
	return i
}

// await sets the deadline for the next answer: when the time to live has passed
// without one, all grants of the session are over for their holders.
func (s *session) await() error {
	return s.conn.Conn().SetDeadline(time.Now().Add(max(s.silence, goodbye)))
}

var errUnused = errors.New("the session was not needed any more")

// listen waits for the server to end the session, until there is something to
// send or the session was unused for too long.
func (s *session) listen() error {
	if !s.startListening() {
		return nil
	}
	err := s.conn.WaitForNotification(context.Background())
	unused := s.stopListening()
	var timeout net.Error
	switch {
	case err == nil:
		return nil // nobody notifies a lock session
	case !errors.As(err, &timeout) || !timeout.Timeout():
		return err
	case unused:
		return errUnused
	}
	return nil
}

func (s *session) startListening() bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if len(s.queue) > 0 || s.stopping {
		return false
	}
	var until time.Time
	if len(s.holds) == 0 {
		until = s.unusedAt.Add(s.spareTime())
	}
	s.listening = true
	return s.conn.Conn().SetReadDeadline(until) == nil
}

// stopListening tells whether the session should end for want of use. Then
// nobody gets it any more.
func (s *session) stopListening() bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.listening = false
	if len(s.holds)+len(s.queue) > 0 || time.Since(s.unusedAt) < s.spareTime() {
		return false
	}
	s.retire()
	return true
}

// spareTime ends before the server ends the session, and says so in its log.
func (s *session) spareTime() time.Duration { return min(s.silence/2, spare) }

// retire takes the session out of those that may be picked.
func (s *session) retire() {
	of := s.d.sessions[s.class]
	if i := slices.Index(of, s); i >= 0 {
		of = slices.Delete(of, i, i+1)
	}
	if s.d.sessions[s.class] = of; len(of) == 0 {
		delete(s.d.sessions, s.class)
	}
}

// inBinary is the format of all parameters: bytes as they are.
var inBinary = []int16{pgx.BinaryFormatCode}

// exchange sends ops and answers them. Each is a transaction of its own.
func (s *session) exchange(ops []*op) error {
	sent := time.Now()
	p := s.conn.StartPipeline(context.Background())
	statements := 0
	for _, o := range ops {
		if o.stmt != "" {
			p.SendQueryPrepared(o.stmt, o.args, inBinary, nil)
			p.SendPipelineSync()
			statements++
		}
	}
	if statements == 0 {
		p.SendPipelineSync() // the server answers, and starts idle_session_timeout anew
	}
	if err := p.Flush(); err != nil {
		return err
	}
	if err := s.receive(p, ops, sent); err != nil {
		return err // p stays open: its Close may close the connection before the losses are told
	}
	return p.Close()
}

// receive answers the statements as their results arrive, and then those that
// wanted nothing but an answer.
func (s *session) receive(p *pgconn.Pipeline, ops []*op, sent time.Time) error {
	alive := false
	for _, o := range ops {
		if o.stmt == "" {
			continue
		}
		row, failed := result(p)
		if err := s.synced(p, failed); err != nil {
			return err
		}
		alive = true
		s.reply(o, answerOf{row: row, err: failed, sent: sent})
	}
	if !alive {
		if err := s.synced(p, nil); err != nil {
			return err
		}
	}
	for _, o := range ops {
		if o.stmt == "" {
			s.reply(o, answerOf{sent: sent})
		}
	}
	return nil
}

// result is the first row of the next statement.
func result(p *pgconn.Pipeline) ([][]byte, error) {
	r, err := p.GetResults()
	if err != nil {
		return nil, err
	}
	reader, ok := r.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("pglock: unexpected %T in the answer", r)
	}
	all := reader.Read()
	if all.Err != nil || len(all.Rows) == 0 {
		return nil, all.Err
	}
	return all.Rows[0], nil
}

// synced reads the end of a statement's answer. It returns an error if the
// session can't go on: that is so unless the server itself says that the
// statement failed.
func (s *session) synced(p *pgconn.Pipeline, failed error) error {
	var pe *pgconn.PgError
	if failed != nil && (!errors.As(failed, &pe) || s.conn.IsClosed()) {
		return failed
	}
	r, err := p.GetResults()
	if err != nil {
		return cmp.Or(failed, err)
	}
	if _, ok := r.(*pgconn.PipelineSync); !ok {
		return fmt.Errorf("pglock: unexpected %T in the answer", r)
	}
	return nil
}

// reply answers an op that the server has answered.
func (s *session) reply(o *op, a answerOf) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.proved = a.sent
	if !s.stopping {
		_ = s.await() // if it fails so will the next read
	}
	o.done = true
	o.answer(a)
}

// end answers what is left, and ends every hold. The channel is closed when the
// losses were reported.
func (s *session) end(cause error) (told <-chan struct{}) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.retire()
	s.died = errors.New("postgres " + s.d.addr() + ": " + cause.Error())
	explained := s.d.explain(context.Background(), cause)
	if s.stopping {
		s.died, explained = drivers.ErrClosed, drivers.ErrClosed
	}
	for _, o := range append(s.asked, s.queue...) {
		if !o.done {
			o.answer(answerOf{err: explained, ended: true})
		}
	}
	var lost []*hold
	for h := range s.holds {
		if h.lose() {
			lost = append(lost, h)
		}
	}
	return s.d.report(lost)
}

// connect opens the connection. It holds nothing yet, so a context may end it.
func (s *session) connect(ctx context.Context) error {
	conn, err := pgconn.ConnectConfig(ctx, &s.d.sessionConfig(s.class.silence).Config)
	if err != nil {
		return s.d.explainStart(err)
	}
	if err = s.d.admitSession(ctx, conn, s.class.silence); err == nil {
		err = s.d.prepare(ctx, conn)
	}
	if err != nil {
		closeConn(conn)
		return s.d.explain(context.Background(), err)
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.conn = conn
	return nil
}

// sessionConfig is the configuration of a connection that the server ends after
// so much silence.
func (d *Advisory) sessionConfig(silence time.Duration) *pgx.ConnConfig {
	c := d.config.Copy()
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "lockkit"
	}
	if !d.sessionPooler { // which would refuse them
		maps.Copy(c.RuntimeParams, sessionSettings(silence))
	}
	return c
}

// sessionSettings are what a lock session needs: its lease; no statement that
// hangs on a row that somebody else keeps locked; and an UPDATE that continues
// with the newest version of a row.
func sessionSettings(silence time.Duration) map[string]string {
	return map[string]string{
		"idle_session_timeout":          milliseconds(silence),
		"lock_timeout":                  milliseconds(silence / 4),
		"default_transaction_isolation": "read committed",
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// admitSession makes sure that the connection is a session of its own on a
// server that ends it after so much silence.
func (d *Advisory) admitSession(ctx context.Context, conn *pgconn.PgConn, silence time.Duration) error {
	f, err := d.examineServer(ctx, conn)
	if err != nil {
		return err
	}
	if d.sessionPooler {
		if err := configure(ctx, conn, silence); err != nil {
			return err
		}
		if f, err = d.examineServer(ctx, conn); err != nil {
			return err
		}
	} else if f.pooled {
		return pooled(d.addr())
	}
	if f.silence != silence {
		return &drivers.ConfigError{Key: "lock_mode", Value: "advisory", Problem: "needs idle_session_timeout, which postgres " + d.addr() + " does not take", Fix: "use lock_mode=cas"}
	}
	return nil
}

func configure(ctx context.Context, conn *pgconn.PgConn, silence time.Duration) error {
	for key, value := range sessionSettings(silence) {
		args := [][]byte{[]byte(key), []byte(value)}
		if r := conn.ExecParams(ctx, "SELECT set_config($1, $2, false)", args, nil, nil, nil).Read(); r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// prepare has the server parse the statements, in one round trip.
func (d *Advisory) prepare(ctx context.Context, conn *pgconn.PgConn) error {
	p := conn.StartPipeline(ctx)
	for name, sql := range d.prepared {
		p.SendPrepare(name, sql, nil)
	}
	if err := p.Sync(); err != nil {
		return err
	}
	for range d.prepared {
		if _, err := p.GetResults(); err != nil {
			_ = p.Close()
			return err
		}
	}
	return p.Close()
}

// explainStart is explain for a connection that could not be opened.
func (d *Advisory) explainStart(err error) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return err
	}
	switch {
	case refusesParameter(pe):
		return pooled(d.addr())
	case pe.Code == undefinedObject && strings.Contains(pe.Message, "idle_session_timeout"):
		return tooOld(d.addr(), "before 14")
	}
	return err
}

// closeConn says goodbye to the server, but does not wait for one that hangs.
func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	_ = conn.Conn().SetDeadline(time.Time{})
	_ = conn.Close(ctx)
	select {
	case <-conn.CleanupDone():
	case <-ctx.Done():
	}
}
