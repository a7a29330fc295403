package tcpstore_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-run/muster/store/tcpstore"
)

// bigSet is a SET of key k to 100 KiB.
func bigSet() []byte {
	b := append(unhex("01"), binary.LittleEndian.AppendUint64(nil, 1)...)
	b = binary.LittleEndian.AppendUint64(append(b, 'k'), 100<<10)
	return append(b, make([]byte, 100<<10)...)
}

// bigServer has n connections that each stop in the middle of a big request.
func bigServer(t *testing.T) (s *tcpstore.Server, log *logBuffer, stop func(n int), dial func() net.Conn) {
	log = &logBuffer{}
	ln := newPipes()
	s, err := tcpstore.Listen(tcpstore.ServerConfig{Listener: ln, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	dial = func() net.Conn {
		nc := ln.dial()
		if !greet(nc) {
			t.Fatal("a client is not served")
		}
		return nc
	}
	stop = func(n int) {
		for range n {
			nc := dial()
			go nc.Write(bigSet()[:90<<10])
		}
		synctest.Wait()
	}
	return s, log, stop, dial
}

// Big requests that stay incomplete keep others waiting, not longer than two minutes, and
// hold no more memory than there is for them. Small ones do not notice.
func TestBigRequestsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, stop, dial := bigServer(t)
		stop(128)
		time.Sleep(time.Second)
		client, small := dial(), dial()
		start := time.Now()
		go client.Write(append(bigSet(), unhex("07")...)) // and GETNUMKEYS, which has a reply
		synctest.Wait()
		small.Write(unhex("07"))
		if n := make([]byte, 8); !filled(small, n) || n[0] != 0 {
			t.Errorf("a small request: %x", n)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("a small request took %v", took)
		}
		client.SetReadDeadline(time.Now().Add(bigWait))
		if n := make([]byte, 8); !filled(client, n) || n[0] != 1 {
			t.Errorf("the request that waited: %x", n)
		}
		if took := time.Since(start); took != bigWait-time.Second {
			t.Errorf("it waited %v", took)
		}
		synctest.Wait() // all of the others are closed
		s.Close()
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "was not complete") || !strings.Contains(text, "closed=127") {
			t.Errorf("log: %s", text)
		}
	})
}

const bigWait = 2 * time.Minute

func filled(nc net.Conn, b []byte) bool {
	_, err := io.ReadFull(nc, b)
	return err == nil
}

// One for which there is no memory in two minutes is closed.
func TestBigRequestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, stop, dial := bigServer(t)
		defer s.Close()
		stop(128)
		time.Sleep(time.Second)
		stop(128) // take the places of the others in turn
		time.Sleep(time.Second)
		client := dial()
		start := time.Now()
		if _, err := io.Copy(client, bytes.NewReader(bigSet())); err == nil {
			t.Error("it was received")
		}
		if took := time.Since(start); took != bigWait {
			t.Errorf("closed after %v", took)
		}
		time.Sleep(time.Minute)
		client = dial()
		go client.Write([]byte{0xff}) // to see how many were closed
		synctest.Wait()
		if text := log.String(); !strings.Contains(text, "closed=128") && !strings.Contains(text, "closed=129") {
			t.Errorf("log: %s", text)
		}
	})
}

// Close and Reset end requests that wait for their turn, and places are free afterwards.
func TestBigRequestsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, stop, dial := bigServer(t)
		for range 2 {
			stop(200)
			start := time.Now()
			s.Reset()
			client := dial()
			client.Write(append(bigSet(), unhex("07")...))
			if n := make([]byte, 8); !filled(client, n) || n[0] != 1 || time.Since(start) > 0 {
				t.Errorf("after a reset: %x in %v", n, time.Since(start))
			}
		}
		stop(200)
		s.Close()
	})
}

// Requests of more than 64 MiB are refused as soon as they say so, and what
// PyTorch's clients may send is not.
func TestGreatestRequests(t *testing.T) {
	s, log := listenLogged(t)
	c := dial(t, s.Addr().String())
	values := make([][]byte, 9)
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
	for i := range values {
		values[i] = make([]byte, 8<<20-100)
	}
	if err := c.MultiSet(t.Context(), keys[:8], values[:8]); err != nil {
		t.Error(err)
	}
	if _, err := c.CompareAndSet(t.Context(), "a", values[0], values[1]); err != nil {
		t.Error(err)
	}
	if err := c.MultiSet(t.Context(), keys, values); err == nil {
		t.Error("72 MiB in one request")
	}
	s.Close()
	if text := log.String(); !strings.Contains(text, "request of more than 67108864 bytes") {
		t.Errorf("log: %s", text)
	}
}
