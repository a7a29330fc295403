package tcpstore_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// vectors are what a real torch client and a real torch server exchanged, and
// what a real server did with hand-made bytes. See testdata/README.md.
type vectors struct {
	Vectors []struct {
		Name     string
		Exchange []step
	}
	Probes []struct {
		Name  string
		Steps []step
	} `json:"server_probes"`
}

type step struct {
	Conn   int
	Dir    string // c2s or s2c
	Hex    string
	EOF    bool
	Closed string
	Length int // of a request too long to be written down
}

func loadVectors(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors-2.15.0-libuv.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) != 56 || len(v.Probes) < 55 {
		t.Fatalf("%d vectors, %d probes", len(v.Vectors), len(v.Probes))
	}
	return v
}

// wires are raw connections to one server, by number.
type wires struct {
	*testing.T
	addr  string
	conns map[int]net.Conn
}

func newWires(t *testing.T, s *tcpstore.Server) *wires {
	w := &wires{T: t, addr: s.Addr().String(), conns: map[int]net.Conn{}}
	t.Cleanup(func() {
		for _, nc := range w.conns {
			nc.Close()
		}
	})
	return w
}

func (w *wires) conn(i int) net.Conn {
	w.Helper()
	if nc := w.conns[i]; nc != nil {
		return nc
	}
	nc, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(patience))
	w.conns[i] = nc
	return nc
}

func (w *wires) send(i int, data []byte) {
	w.Helper()
	// A server that has closed may refuse the rest.
	if _, err := w.conn(i).Write(data); err != nil && !closed(err) {
		w.Fatal(err)
	}
}

func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (w *wires) expect(i int, want []byte) {
	w.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(w.conn(i), got)
	if err != nil {
		w.Fatalf("connection %d: read %x, then %v, want %x", i, got[:n], err, want)
	}
	if !bytes.Equal(got, want) {
		w.Fatalf("connection %d: read %x, want %x", i, got, want)
	}
}

func (w *wires) expectClosed(i int) {
	w.Helper()
	var b [64]byte
	n, err := w.conn(i).Read(b[:])
	if n > 0 || !closed(err) {
		w.Fatalf("connection %d: read %x, %v, want it closed", i, b[:n], err)
	}
	w.conns[i].Close()
	delete(w.conns, i)
}

// sync sees to it that everything sent on a connection has been performed, and
// that nothing is waiting to be read.
func (w *wires) sync(i int) {
	w.Helper()
	w.send(i, unhex("0d51525354"))
	w.expect(i, unhex("51525354"))
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// opened sends the opening of a good client on a connection.
func (w *wires) opened(i int) {
	w.Helper()
	w.send(i, unhex("00cef7853c"))
	w.sync(i)
}

func str(s string) string {
	return hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, uint64(len(s)))) + hex.EncodeToString([]byte(s))
}

// TestVectors replays every recorded call, in order, on one server.
func TestVectors(t *testing.T) { ofBoth(t, testVectors) }

func testVectors(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	const other = 1000
	fresh := func() *wires {
		w := newWires(t, open(t))
		w.opened(other)
		return w
	}
	w := fresh()
	// What another client did meanwhile, as the vectors' notes say.
	meanwhile := map[string]string{
		"wait_then_set_by_other":                "01" + str("/late") + str("x"),
		"queue_pop_blocking_then_push_by_other": "0e" + str("/q") + str("late"),
		"barrier_world_2":                       "12" + str("/bar2") + "0200000000000000",
	}
	before := map[string]string{
		"list_keys":       "01" + str("/solo") + str(""),
		"add_non_numeric": "01" + str("/notnum") + str("abc"),
	}
	for _, v := range loadVectors(t).Vectors {
		if v.Name == "list_keys_empty" { // the rest was recorded on a second server
			w = fresh()
			w.opened(0)
			w.opened(2)
		}
		act := meanwhile[v.Name]
		if act := before[v.Name]; act != "" {
			w.send(other, unhex(act))
			w.sync(other)
		}
		for _, s := range v.Exchange {
			switch {
			case s.EOF && s.Conn == 0:
				w.expectClosed(0)
			case s.EOF: // the clone has gone
				w.conn(s.Conn).Close()
				delete(w.conns, s.Conn)
			case s.Dir == "c2s":
				w.send(s.Conn, unhex(s.Hex))
				if act != "" {
					w.sync(s.Conn)
					w.send(other, unhex(act))
					if act[:2] == "12" {
						w.expect(other, unhex("00"))
					}
					act = ""
				}
			case strings.Contains(v.Name, "list_keys"):
				got := make([]byte, len(s.Hex)/2)
				if _, err := io.ReadFull(w.conn(s.Conn), got); err != nil {
					t.Fatalf("%s: %v", v.Name, err)
				}
				if g, want := keyList(t, got), keyList(t, unhex(s.Hex)); !slices.Equal(g, want) {
					t.Fatalf("%s: %q, want %q", v.Name, g, want)
				}
			default:
				w.expect(s.Conn, unhex(s.Hex))
			}
		}
		for i := range w.conns {
			w.sync(i)
		}
	}
}

// keyList decodes a reply to LIST_KEYS, whose order means nothing.
func keyList(t *testing.T, b []byte) (keys []string) {
	t.Helper()
	n := binary.LittleEndian.Uint64(b)
	b = b[8:]
	for range n {
		size := binary.LittleEndian.Uint64(b)
		keys = append(keys, string(b[8:8+size]))
		b = b[8+size:]
	}
	slices.Sort(keys)
	return keys
}

// TestProbes replays what was sent to the real server by hand. Where ours is to
// behave better the steps are replaced.
func TestProbes(t *testing.T) { ofBoth(t, testProbes) }

func testProbes(t *testing.T, open func(testing.TB) *tcpstore.Server) {
	closedAtOnce := func(i int, sent string) []step {
		return []step{{Conn: i, Dir: "c2s", Hex: sent}, {Conn: i, Dir: "s2c", Closed: "eof"}}
	}
	ours := map[string][]step{
		"ping_without_validate": closedAtOnce(0, "0d01020304"),
		"validate_wrong_magic":  closedAtOnce(1, "00deadbeef"),
		"validate_fragmented_1+4": {
			{Conn: 2, Dir: "c2s", Hex: "00"},
			{Conn: 2, Dir: "c2s", Hex: "cef7853c"},
			{Conn: 2, Dir: "c2s", Hex: "0d05060708"},
			{Conn: 2, Dir: "s2c", Hex: "05060708"},
		},
		"http_request":                 closedAtOnce(5, "474554202f20485454502f312e300d0a0d0a"),
		"..waiter_of_that_missing_key": {}, // not woken while its key does not exist
		"stale_queue_waiter_spurious_wake": { // not woken by the other queue
			{Conn: 49, Dir: "c2s", Hex: "06010000000000000006000000000000002f6f74686572"},
			{Conn: 48, Dir: "c2s", Hex: "0e03000000000000002f7171010000000000000067"},
		},
	}
	long := map[string][]byte{}
	for n := range 2 {
		key := str(strings.Repeat("k", 8192+n))
		long[fmt.Sprint("key_len_", 8192+n)] = unhex("01" + key + str("v") + "050100000000000000" + key)
		value := strings.Repeat("v", 8<<20+n)
		name := fmt.Sprint("/big", len(value))
		long[fmt.Sprint("payload_", len(value))] = unhex("01" + str(name) + str(value) + "050100000000000000" + str(name))
		count := binary.LittleEndian.AppendUint64([]byte{5}, uint64(131072+n))
		long[fmt.Sprint("check_count_", 131072+n)] = append(count, bytes.Repeat(unhex(str("/a")), 131072+n)...)
	}

	w := newWires(t, open(t))
	for _, p := range loadVectors(t).Probes {
		steps := p.Steps
		if our, ok := ours[p.Name]; ok {
			steps = our
			delete(ours, p.Name)
		}
		if p.Name == "payload_8388609" {
			steps = append(steps, step{Conn: 22, Dir: "s2c", Closed: "reset"})
		}
		ok := t.Run(p.Name, func(t *testing.T) {
			w.T = t
			for i, s := range steps {
				switch {
				case s.Dir == "c2s" && s.Closed != "":
					w.conn(s.Conn).Close()
					delete(w.conns, s.Conn)
				case s.Dir == "c2s":
					data := unhex(s.Hex)
					if s.Length > 0 {
						if data = long[p.Name]; len(data) != s.Length {
							t.Fatalf("request of %d bytes, recorded were %d", len(data), s.Length)
						}
					}
					w.send(s.Conn, data)
					// In one case the answer is the next probe's.
					answered := p.Name == "barrier_first" || i+1 < len(steps) && steps[i+1].Dir == "s2c" && steps[i+1].Conn == s.Conn
					if s.Conn >= 26 && s.Conn <= 51 && !answered {
						w.sync(s.Conn)
					}
				case s.Closed != "":
					w.expectClosed(s.Conn)
				default:
					w.expect(s.Conn, unhex(s.Hex))
				}
			}
		})
		if !ok {
			return
		}
		w.T = t
	}
	// Nobody got more than was recorded.
	for i := range w.conns {
		w.sync(i)
	}
	if len(ours) > 0 {
		t.Errorf("not among the probes: %v", ours)
	}
}
