package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-run/muster/internal/wait/parallel"
)

// How two doctors talk. A client connects and sends one line,
//
//	muster-doctor 1 TOKEN COMMAND
//
// The token is the one that the listening doctor has told the hosts it met. Then
//
//	ping         each further byte is answered by a line with the time, in
//	             nanoseconds since 1970
//	sink         the client sends bytes and half-closes; the answer is their number
const (
	greeting = "muster-doctor 1 "
	maxLine  = 256
	// connLimit bounds a connection from its beginning to its end.
	connLimit = 30 * time.Second
	// maxConns is how many are served at once; others wait in the kernel.
	maxConns = 256
)

// A listener answers other doctors.
type listener struct {
	net.Listener
	token  string
	system *System
	cancel context.CancelFunc // ends the connections
	all    sync.WaitGroup
}

// listen starts a listener at a free port; stop ends it.
func listen(token string, s *System) (*listener, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &listener{Listener: l, token: token, system: s, cancel: cancel}
	w.all.Go(func() { w.accept(ctx) })
	return w, nil
}

func (w *listener) port() int { return w.Addr().(*net.TCPAddr).Port }

// stop ends all connections and waits for who serves them.
func (w *listener) stop() {
	w.cancel()
	w.Close()
	w.all.Wait()
}

// acceptPause is before another try where a connection could not be accepted.
const acceptPause = 100 * time.Millisecond

func (w *listener) accept(ctx context.Context) {
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		conn, err := w.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-slots
			time.Sleep(acceptPause) // for lack of descriptors; there may be one soon
			continue
		}
		w.all.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			// A connection that says nothing does not hold up stop.
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			w.serve(conn)
		})
	}
}

// readLine reads a line that the reader has room for, without its end.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(line), "\n"), nil
}

// parseRequest takes a request apart. What the line does not say stays empty.
func parseRequest(line string) (token, command string) {
	_, _ = fmt.Sscanf(line, greeting+"%s %s", &token, &command)
	return token, command
}

// serve answers one request. Who asks for anything else gets nothing.
func (w *listener) serve(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(connLimit))
	r := bufio.NewReaderSize(conn, maxLine)
	line, _ := readLine(r)
	token, command := parseRequest(line)
	switch {
	case token != w.token:
	case command == "ping":
		for err := error(nil); err == nil; {
			if _, err = r.ReadByte(); err == nil {
				_, err = fmt.Fprintln(conn, w.system.Now().UnixNano())
			}
		}
	case command == "sink":
		if n, err := io.Copy(io.Discard, r); err == nil {
			fmt.Fprintln(conn, n)
		}
	}
}

// A caller asks a listener.
type caller struct {
	system *System
	addr   string // host:port
	token  string
}

// request connects and sends a request. The connection ends when limit has passed.
func (c caller) request(ctx context.Context, mss int, limit time.Duration, command string) (net.Conn, error) {
	conn, err := c.system.connect(ctx, c.addr, mss)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(conn, "%s%s %s\n", greeting, c.token, command); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// pings is how often the time is asked for; the fastest answer counts.
const pings = 6

// ping returns the round trip, and how far the listener's clock is ahead of ours.
func (c caller) ping(ctx context.Context) (trip, offset time.Duration, err error) {
	conn, err := c.request(ctx, 0, dialLimit, "ping")
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	r := bufio.NewReaderSize(conn, maxLine)
	for i := range pings {
		began := time.Now()
		before := c.system.Now()
		if _, err := conn.Write([]byte{'p'}); err != nil {
			return 0, 0, err
		}
		line, err := readLine(r)
		took := time.Since(began)
		if err != nil {
			return 0, 0, err
		}
		theirs, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return 0, 0, errors.New("the program that answers there is not muster doctor")
		}
		if i == 0 || took < trip {
			trip = took
			offset = time.Unix(0, theirs).Sub(before) - took/2
		}
	}
	return trip, offset, nil
}

const (
	// bulk is more than the connection's first packets may hold, bytes.
	bulk = 1 << 20
	// bulkLimit is how long it may take: 3 Mbit/s.
	bulkLimit = 3 * time.Second
	// probeBulk and probeLimit are those of the search for the size that passes.
	probeBulk  = 32 << 10
	probeLimit = 2500 * time.Millisecond
)

// sink sends n bytes, in segments of at most mss bytes (0: as the kernel likes), and waits until they
// have arrived.
func (c caller) sink(ctx context.Context, mss int, limit time.Duration, n int64) error {
	conn, err := c.request(ctx, mss, limit, "sink")
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, n)); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	line, err := readLine(bufio.NewReaderSize(conn, maxLine))
	if err != nil {
		return err
	}
	if got, err := strconv.ParseInt(line, 10, 64); err != nil || got != n {
		return fmt.Errorf("%d bytes were sent, but the other side received %.20q", n, line)
	}
	return nil
}

// sizes are packets that networks are known to limit to, bytes: jumbo frames,
// Ethernet, PPPoE, VXLAN, WireGuard, IPv6's least, and less.
var sizes = [...]int{8900, 1500, 1492, 1450, 1420, 1280, 1000, 576, 296}

// passing returns the largest packet that gets through, bytes; 0 if none does.
func (c caller) passing(ctx context.Context) int {
	headers := 40
	if strings.HasPrefix(c.addr, "[") { // IPv6
		headers = 60
	}
	got := parallel.Map(len(sizes), len(sizes), func(i int) bool {
		return c.sink(ctx, sizes[i]-headers, probeLimit, probeBulk) == nil
	})
	if i := slices.Index(got, true); i >= 0 {
		return sizes[i]
	}
	return 0
}

// probe tries an address: first the time it takes, then more than one packet holds.
func (c caller) probe(ctx context.Context) (f finding) {
	var err error
	if f.Trip, f.Offset, err = c.ping(ctx); err != nil {
		f.Problem = why(err)
	} else if err := c.sink(ctx, 0, bulkLimit, bulk); err != nil {
		f.Stuck, f.Passes = why(err), c.passing(ctx)
	}
	return f
}
