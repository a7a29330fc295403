package tcpstore_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// TestArrival has two clients write a key one after the other, before the server reads either:
// the second one's value stays. PyTorch's clients take a SET for done once it is sent.
func TestArrival(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the server has to wait for this goroutine
	ofBoth(t, func(t *testing.T, serve func(testing.TB) *tcpstore.Server) {
		w := newWires(t, serve(t))
		for i := range 8 {
			w.opened(i)
			w.sync(i)
		}
		reversed := 0
		const rounds = 200
		for range rounds {
			for i := range 8 {
				w.send(i, unhex("01"+str("/k")+str(string(rune('a'+i)))))
			}
			for i := range 8 {
				w.sync(i)
			}
			w.send(0, unhex("03"+str("/k")))
			var got [9]byte // the length and the value
			if _, err := io.ReadFull(w.conn(0), got[:]); err != nil {
				t.Fatal(err)
			}
			if got[8] != 'h' {
				reversed++
			}
		}
		if reversed > 0 {
			t.Errorf("in %d of %d rounds another value than the last one stays", reversed, rounds)
		}
	})
}

// TestFlood has a client send more than the server reads at once, and then another one.
func TestFlood(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := newWires(t, listen(t))
	w.opened(0)
	w.opened(1)
	const n = 10_000
	add := unhex("04" + str("/sum") + "0100000000000000")
	sent := make(chan struct{})
	go func() { defer close(sent); w.conns[0].Write(bytes.Repeat(add, n)) }()
	w.sync(1)
	var want []byte
	for i := range uint64(n) {
		want = binary.LittleEndian.AppendUint64(want, i+1)
	}
	w.expect(0, want)
	<-sent
	w.sync(0)
}

// TestArrivalOfSlowClient has a client send thousands of requests without reading the replies. The
// server then blocks writing them, with requests unread. Others do not wait for it.
func TestArrivalOfSlowClient(t *testing.T) {
	w := newWires(t, listen(t))
	w.opened(0)
	w.opened(1)
	const n, more, size = 4000, 100, 20_000
	get := unhex("03" + str("/k"))
	w.send(0, unhex("01"+str("/k")+str(strings.Repeat("v", size))))
	w.sync(0)
	w.send(0, bytes.Repeat(get, n))
	for range more {
		w.sync(1)
		w.send(0, get)
	}
	if got, err := io.CopyN(io.Discard, w.conn(0), (n+more)*(8+size)); err != nil {
		t.Errorf("the client itself got %d bytes: %v", got, err)
	}
	w.sync(0)
}

// TestArrivalOfManySlowClients has many do that. Others do not wait for one after the other.
func TestArrivalOfManySlowClients(t *testing.T) {
	w := newWires(t, listen(t))
	w.opened(0)
	const slow, size = 50, 20_000
	w.send(0, unhex("01"+str("/k")+str(strings.Repeat("v", size))))
	w.sync(0)
	get := unhex("03" + str("/k"))
	for i := 1; i <= slow; i++ {
		w.opened(i)
		w.send(i, bytes.Repeat(get, 600))
	}
	for i := 1; i <= slow; i++ {
		w.expect(i, binary.LittleEndian.AppendUint64(nil, size)) // the server writes its replies
		w.send(i, get)
	}
	began := time.Now()
	w.sync(0)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("another client has waited for %v", took)
	}
}
