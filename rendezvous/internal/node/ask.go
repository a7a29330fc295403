package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// A request of one agent to another is a call of its own. The one that asks sends the request, the other one answer
// to it, each as a byte, a length in four bytes, big endian, and that many bytes. The byte is said, or of an error's
// text wrong.
const (
	said, wrong byte = 0, 1

	maxRequest    = 64 << 10 // bytes
	maxWrong      = 1 << 10  // of an error's text
	answersAtOnce = 64       // more requests are answered with an error
)

// answers is how a node answers requests of other agents. Nothing but running changes after the node's first session.
type answers struct {
	by      map[string]func(ctx context.Context, request []byte) ([]byte, error)
	slots   chan struct{} // holds a value for each request that is being answered
	running sync.WaitGroup

	// life is the context of all answers: requests come at any time, and within no call of the node's methods.
	life context.Context
	end  context.CancelFunc
}

func newAnswers() *answers {
	a := &answers{by: map[string]func(context.Context, []byte) ([]byte, error){}, slots: make(chan struct{}, answersAtOnce)}
	a.life, a.end = context.WithCancel(context.Background())
	return a
}

// kinds are those of the requests that this node answers.
func (a *answers) kinds() []string { return slices.Sorted(maps.Keys(a.by)) }

// close ends the answers that are under way. No session may be open any more.
func (a *answers) close() {
	a.end()
	a.running.Wait()
}

// Handle implements rendezvous.Caller.
func (n *Node) Handle(kind string, answer func(ctx context.Context, request []byte) ([]byte, error)) {
	n.answers.by[kind] = answer
}

// Ask implements rendezvous.Caller.
func (n *Node) Ask(ctx context.Context, rank int, kind string, request []byte, limit int) ([]byte, error) {
	if len(request) > maxRequest {
		return nil, fmt.Errorf("a request has %d bytes, more than %d", len(request), maxRequest)
	}
	conn, err := n.call(ctx, rank, server.Calling{Ask: kind})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	how, answer := said, []byte(nil)
	if err = writePart(conn, said, request); err == nil {
		how, answer, err = readPart(conn, max(limit, maxWrong))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("no answer: %w", err)
	case how != said:
		return nil, errors.New(text.Line(string(answer), maxWrong))
	case len(answer) > limit:
		return nil, tooLong(len(answer), limit)
	}
	return answer, nil
}

// respond answers one request of another agent.
func (s *session) respond(call uint64, kind string) {
	a := s.n.answers
	ctx, cancel := context.WithCancel(a.life)
	defer cancel()
	conn, err := s.take(ctx, call)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	_, request, err := readPart(conn, maxRequest)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	a.running.Go(func() {
		_, _ = conn.Read(make([]byte, 1)) // until the one that asks hangs up, or conn is closed
		cancel()
	})
	how, answer := said, []byte(nil)
	// Only now: an agent that sends its request slowly has no slot.
	select {
	case a.slots <- struct{}{}:
		answer, err = a.by[kind](ctx, request)
		<-a.slots
	default:
		err = fmt.Errorf("%d requests are being answered; try again later", answersAtOnce)
	}
	if err != nil {
		how, answer = wrong, []byte(text.Line(err.Error(), maxWrong))
	}
	_ = conn.SetWriteDeadline(time.Now().Add(answerTime))
	if err := writePart(conn, how, answer); err != nil {
		s.n.log.Debug("cannot answer another agent's request", "kind", kind, "error", err)
	}
}

func writePart(w io.Writer, how byte, body []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32([]byte{how}, uint32(len(body))), body...))
	return err
}

func readPart(r io.Reader, limit int) (how byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if int64(n) > int64(limit) {
		return 0, nil, tooLong(int(n), limit)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

func tooLong(n, limit int) error { return fmt.Errorf("it has %d bytes, and the limit is %d", n, limit) }
