package tcpstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/store"
	"github.com/muster-run/muster/store/internal/kv"
)

// scripted is a connection that reads what it is given, chunk bytes at a time,
// and remembers what is written.
type scripted struct {
	in    []byte
	chunk int
	out   bytes.Buffer
}

func (s *scripted) Read(b []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.in[:min(s.chunk, len(s.in))])
	s.in = s.in[n:]
	return n, nil
}

func (s *scripted) Write(b []byte) (int, error)      { return s.out.Write(b) }
func (s *scripted) Close() error                     { return nil }
func (s *scripted) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *scripted) SetDeadline(time.Time) error      { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }

// recorded returns what went one way in each of the vectors, put together by connection.
func recorded(t testing.TB, direction string) (streams [][]byte) {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors-2.15.0-libuv.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []struct {
			Exchange []struct{ Dir, Hex string }
		}
		Probes []struct {
			Steps []struct{ Dir, Hex string }
		} `json:"server_probes"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for _, v := range file.Vectors {
		var stream []byte
		for _, s := range v.Exchange {
			if s.Dir == direction {
				b, _ := hex.DecodeString(s.Hex)
				stream = append(stream, b...)
			}
		}
		streams = append(streams, stream)
	}
	for _, p := range file.Probes {
		for _, s := range p.Steps {
			if s.Dir == direction {
				b, _ := hex.DecodeString(s.Hex)
				streams = append(streams, b)
			}
		}
	}
	return streams
}

// served returns what a new server answers to a stream that arrives in chunks,
// and why it ended the connection.
func served(t testing.TB, stream []byte, chunk int) ([]byte, error) {
	t.Helper()
	memory := kv.NewMemory()
	s := &Server{arrivals: newArrivals(), memory: memory, m: memory.Map, log: slog.New(slog.DiscardHandler)}
	for i := range places {
		s.places[i] = make(chan struct{}, places[i].most)
	}
	s.HandleSession("echo", func(conn net.Conn) { io.Copy(conn, conn) })
	s.Mirror("k", &plainMirror{})
	nc := &scripted{in: bytes.Clone(stream), chunk: chunk}
	c := newConn(s, nc)
	err := c.serve()
	c.dropWaits()
	if err == errSession {
		nc.Write([]byte{accepted})
		c.session(c.afterwards())
	}
	return nc.out.Bytes(), err
}

// plainMirror is a value.
type plainMirror struct{ value []byte }

func (m *plainMirror) Render() ([]byte, bool) { return m.value, true }
func (m *plainMirror) Adopt(value []byte)     { m.value = value }

// FuzzServer sends the server anything. What it answers must not depend on how
// the stream is cut into pieces.
func FuzzServer(f *testing.F) {
	var all []byte
	for _, stream := range recorded(f, "c2s") {
		f.Add(slices.Concat(opening, stream), uint16(3))
		if len(stream) == 0 || stream[0] == byte(qValidate) {
			continue
		}
		all = append(all, stream...)
	}
	f.Add(slices.Concat(opening, all), uint16(1))
	big := slices.Concat(opening, []byte{byte(qSet)}, appendInt(nil, 2), []byte("/b"), appendInt(nil, 5000), make([]byte, 5000),
		[]byte{byte(qCompareSet)}, appendInt(nil, 2), []byte("/b"), appendInt(nil, 5000), make([]byte, 5000), appendInt(nil, 6000), make([]byte, 6000),
		[]byte{byte(qGet)}, appendInt(nil, 2), []byte("/b"))
	f.Add(big, uint16(999))
	session := slices.Concat(opening, checkOf(sessionKey), []byte{byte(qSession)}, appendInt(nil, 4), []byte("echo"), make([]byte, 100))
	f.Add(session, uint16(2))
	f.Add(slices.Concat(opening, []byte{byte(qNumKeys), byte(qSession)}, appendInt(nil, 5), []byte("other"), session[5:]), uint16(0))
	f.Add(slices.Concat(opening, []byte{byte(qWait)}, appendInt(nil, 1), appendInt(nil, 2), []byte("/x"), session[5:]), uint16(6))
	f.Fuzz(func(t *testing.T, stream []byte, chunk uint16) {
		whole, err1 := served(t, stream, len(stream)+1)
		parts, err2 := served(t, stream, int(chunk)+1)
		if err1 == nil || err2 == nil {
			t.Fatalf("ended without a reason: %v, %v", err1, err2)
		}
		// A bad opening is described by as much of it as there is.
		if bytes.HasPrefix(stream, opening) && err1.Error() != err2.Error() {
			t.Fatalf("in one piece: %v, in pieces of %d: %v", err1, chunk+1, err2)
		}
		if listsKeys(stream) {
			return // their order means nothing
		}
		if !bytes.Equal(whole, parts) {
			t.Fatalf("in one piece: %x\nin pieces of %d: %x", whole, chunk+1, parts)
		}
	})
}

func listsKeys(stream []byte) bool { return bytes.IndexByte(stream, byte(qListKeys)) >= 0 }

// TestPieces is what FuzzServer does, with every size of piece and one long
// stream that has every query in it.
func TestPieces(t *testing.T) {
	stream := slices.Clone(opening)
	for _, part := range recorded(t, "c2s") {
		if len(part) == 0 || part[0] == byte(qValidate) || listsKeys(part) {
			continue
		}
		alone, _ := served(t, slices.Concat(opening, part), len(part)+9)
		after, err := served(t, slices.Concat(opening, part, []byte{byte(qNumKeys)}), len(part)+9)
		if !errors.Is(err, io.EOF) || len(after) != len(alone)+8 {
			continue // it ends the connection, or is part of a request only
		}
		stream = append(stream, part...)
		stream = append(stream, byte(qCancelWait)) // it may have left a wait
	}
	whole, err := served(t, stream, len(stream))
	if !errors.Is(err, io.EOF) || len(stream) < 4000 || len(whole) < 500 {
		t.Fatalf("%d bytes were answered by %d: %v", len(stream), len(whole), err)
	}
	for chunk := 1; chunk < len(stream); chunk += 1 + chunk/20 {
		parts, err := served(t, stream, chunk)
		if !errors.Is(err, io.EOF) || !bytes.Equal(whole, parts) {
			t.Fatalf("in pieces of %d: %v, answered %x, want %x", chunk, err, parts, whole)
		}
	}
}

// The value that a COMPARE_SET answers with lies where it was received. It is the same when
// the beginning of another request has to be moved over it before it is sent.
func TestAnswerInTheBuffer(t *testing.T) {
	request := func(q query, key string, values ...[]byte) []byte {
		b := append(appendInt([]byte{byte(q)}, int64(len(key))), key...)
		for _, v := range values {
			b = append(appendInt(b, int64(len(v))), v...)
		}
		return b
	}
	swap := request(qCompareSet, "/swap", nil, bytes.Repeat([]byte("x"), 5000))
	next := request(qSet, "/next", bytes.Repeat([]byte("y"), 4000))
	for before := 0; before < 2*bigValue; before += 5 { // where the buffer has an end within swap
		stream := slices.Concat(opening, request(qSet, "/a", make([]byte, before/2)), request(qSet, "/b", make([]byte, before/2)), swap, next)
		if got, _ := served(t, stream, len(stream)); !bytes.Equal(got, append(appendInt(nil, 5000), bytes.Repeat([]byte("x"), 5000)...)) {
			t.Fatalf("behind %d bytes the answer has %d of 5000 bytes", before, bytes.Count(got, []byte("x")))
		}
	}
}

// TestSessionPieces cuts the way into a session everywhere.
func TestSessionPieces(t *testing.T) {
	text := "what was sent ahead and what follows"
	stream := slices.Concat(opening, []byte{byte(qNumKeys)}, checkOf(sessionKey),
		[]byte{byte(qSession)}, appendInt(nil, 4), []byte("echo"), []byte(text))
	want := slices.Concat(appendInt(nil, 1), []byte{ready, accepted}, []byte(text)) // the one key is the mirrored one
	for chunk := 1; chunk <= len(stream); chunk++ {
		got, err := served(t, stream, chunk)
		if err != errSession || !bytes.Equal(got, want) {
			t.Errorf("in pieces of %d: %q, %v", chunk, got, err)
		}
	}
}

// FuzzSession has whatever listens there answer a client that wants a session.
func FuzzSession(f *testing.F) {
	for _, answer := range []string{"\x01\x00\x00after", "\x01\x01", "\x01\x00\x01", "HTTP/1.1 400 Bad Request\r\n",
		"\x15\x03\x01\x00\x02\x02\x46", "SSH-2.0-x", "", "\x00", "\x01\x02", "\x01\x00\xff"} {
		f.Add([]byte(answer), uint16(0))
		f.Add([]byte(answer), uint16(50))
	}
	f.Fuzz(func(t *testing.T, answer []byte, chunk uint16) {
		nc := &scripted{in: bytes.Clone(answer), chunk: int(chunk) + 1}
		err := openSession(t.Context(), nc, "echo")
		var seen *NotStoreError
		switch {
		case err == nil:
			if want := answer[3:]; !bytes.Equal(nc.in, want) || answer[0] > 1 || answer[1] != 0 || answer[2] != 0 {
				t.Errorf("answered %x, it is a session that goes on with %x", answer, nc.in)
			}
		case errors.Is(err, ErrNoSession):
			if len(answer) < 2 || answer[1] == 0 && (len(answer) < 3 || answer[2] != 1) {
				t.Errorf("answered %x: %v", answer, err)
			}
		case !errors.As(err, &seen) || len(seen.Answer) > mostAnswered:
			t.Errorf("answered %x: %v", answer, err)
		}
	})
}

// FuzzClient has a server answer anything.
func FuzzClient(f *testing.F) {
	for _, stream := range recorded(f, "s2c") {
		for call := range uint8(8) {
			f.Add(stream, call)
		}
	}
	f.Add(bytes.Repeat([]byte{0xff}, 40), uint8(4))
	f.Add(append(appendInt(nil, 1<<40), 1, 2, 3), uint8(5))
	f.Fuzz(func(t *testing.T, reply []byte, call uint8) {
		c := &Client{main: make(chan *line, 1), lines: map[*line]struct{}{}, timeout: time.Minute}
		c.life, c.end = context.WithCancelCause(context.Background())
		nc := &scripted{in: reply, chunk: 7}
		l := newLine(nc)
		c.main <- l
		c.idle = []*line{newLine(&scripted{in: reply, chunk: 3})}
		ctx := context.Background()
		var err error
		switch call % 8 {
		case 0:
			var value []byte
			if value, err = c.Get(ctx, "k"); len(value) > len(reply) {
				t.Errorf("%d bytes became a value of %d", len(reply), len(value))
			}
		case 1:
			_, err = c.Add(ctx, "k", 1)
		case 2:
			_, err = c.CompareAndSet(ctx, "k", nil, nil)
		case 3:
			_, err = c.MultiGet(ctx, []string{"a", "b"})
		case 4:
			_, err = c.ListKeys(ctx)
		case 5:
			_, err = c.QueuePop(ctx, "k", false)
		case 6:
			err = c.Wait(ctx, "k")
		case 7:
			err = c.Barrier(ctx, "k", 2)
		}
		var lost *LostError
		if err != nil && !errors.As(err, &lost) && !errors.Is(err, store.ErrQueueEmpty) {
			t.Errorf("error %v, want a LostError", err)
		}
	})
}

// TestSlowServer has the client say that it waits for a server that is silent.
func TestSlowServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	said := make(chan string, 10)
	d := newDialer(ClientConfig{Addr: ln.Addr().String(), Logger: slog.New(slog.NewTextHandler(lines(said), nil))})
	d.slow = time.Millisecond
	told := make(chan string, 1)
	d.onRetry = func(err *ConnectError, left time.Duration) {
		select {
		case told <- err.Error():
		default:
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	dialled := make(chan error)
	go func() { _, err := d.dial(ctx, handshake); dialled <- err }()
	if text := <-said; !strings.Contains(text, "no answer yet") || !strings.Contains(text, ln.Addr().String()) {
		t.Errorf("it says %q", text)
	}
	for range 2 { // time and again
		if text := <-told; !strings.Contains(text, "no answer yet; check that the host is up") {
			t.Errorf("it tells %q", text)
		}
	}
	cancel()
	if err := <-dialled; !errors.Is(err, context.Canceled) || len(said) > 0 {
		t.Errorf("%v; said once more: %d", err, len(said))
	}
}

// lines sends what is written.
type lines chan string

func (l lines) Write(b []byte) (int, error) { l <- string(b); return len(b), nil }
