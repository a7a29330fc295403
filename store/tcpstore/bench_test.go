package tcpstore_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/muster-run/muster/store/tcpstore"
)

// target is what a benchmark talks to: our server, a floor that does nothing but
// answer, or whatever listens at MUSTER_BENCH_ADDR.
func target(b *testing.B, echo bool) string {
	b.Helper()
	if echo {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { ln.Close() })
		go func() {
			for {
				nc, err := ln.Accept()
				if err != nil {
					return
				}
				go answer(nc)
			}
		}()
		return ln.Addr().String()
	}
	if addr := os.Getenv("MUSTER_BENCH_ADDR"); addr != "" {
		return addr
	}
	return listen(b).Addr().String()
}

// answer is the floor: 8 bytes for each request of addRequest's size.
func answer(nc net.Conn) {
	defer nc.Close()
	buf := make([]byte, 64<<10)
	out := make([]byte, 64<<10)
	skip := len(opening) // has no answer
	have := 0
	for {
		n, err := nc.Read(buf)
		if err != nil {
			return
		}
		have += n
		if skip > 0 {
			have -= skip
			skip = 0
		}
		k := have / len(addRequest)
		have %= len(addRequest)
		if _, err := nc.Write(out[:8*k]); err != nil {
			return
		}
	}
}

var (
	opening    = unhex("00cef7853c")
	addRequest = unhex("04" + str("/ctr") + "0100000000000000")
)

func raw(b *testing.B, addr string) net.Conn {
	b.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := nc.Write(opening); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { nc.Close() })
	return nc
}

// both runs a benchmark against our server and against the floor.
func both(b *testing.B, f func(b *testing.B, addr string)) {
	b.Run("store", func(b *testing.B) { f(b, target(b, false)) })
	b.Run("echo", func(b *testing.B) { f(b, target(b, true)) })
}

// BenchmarkRoundTrip is one bare connection, one request at a time.
func BenchmarkRoundTrip(b *testing.B) {
	both(b, func(b *testing.B, addr string) {
		nc := raw(b, addr)
		var reply [8]byte
		for b.Loop() {
			nc.Write(addRequest)
			if _, err := io.ReadFull(nc, reply[:]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkClient is the same through Client.
func BenchmarkClient(b *testing.B) {
	c := dial(b, target(b, false))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.Run("Add", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Add(ctx, "ctr", 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Set", func(b *testing.B) {
		b.ReportAllocs()
		value := make([]byte, 100)
		for b.Loop() {
			if err := c.Set(ctx, "key", value); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Get(ctx, "key"); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkAdd is several connections, one request at a time each.
func BenchmarkAdd(b *testing.B) {
	for _, conns := range []int{8, 64} {
		b.Run(strconv.Itoa(conns), func(b *testing.B) {
			both(b, func(b *testing.B, addr string) { drive(b, addr, conns, 1) })
		})
	}
}

// BenchmarkPipelined is 8 connections with 32 requests under way on each.
func BenchmarkPipelined(b *testing.B) {
	both(b, func(b *testing.B, addr string) { drive(b, addr, 8, 32) })
}

// drive has conns connections send depth requests in one write and wait for
// all replies, again and again.
func drive(b *testing.B, addr string, conns, depth int) {
	batch := []byte(strings.Repeat(string(addRequest), depth))
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range conns {
		nc := raw(b, addr)
		n := b.N / depth / conns
		if i == 0 {
			n = (b.N+depth-1)/depth - n*(conns-1)
		}
		all.Go(func() {
			<-start
			reply := make([]byte, 8*depth)
			for range n {
				nc.Write(batch)
				if _, err := io.ReadFull(nc, reply); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.ResetTimer()
	close(start)
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// BenchmarkCrowd is 1,000 clients that connect, add to a counter, and wait for a
// key that the last one sets.
func BenchmarkCrowd(b *testing.B) {
	const crowd = 1000
	wait := unhex("06" + "0100000000000000" + str("/go"))
	for b.Loop() {
		addr := target(b, false)
		conns := make([]net.Conn, crowd)
		start := b.Elapsed()
		for i := range conns {
			conns[i] = raw(b, addr)
			conns[i].Write(unhex("0d00000000"))
		}
		for i := range conns {
			if _, err := io.ReadFull(conns[i], make([]byte, 4)); err != nil {
				b.Fatal(err)
			}
		}
		connected := b.Elapsed()
		var all sync.WaitGroup
		for _, nc := range conns {
			all.Go(func() {
				in := bufio.NewReaderSize(nc, 16)
				nc.Write(addRequest)
				reply := make([]byte, 8)
				io.ReadFull(in, reply)
				if binary.LittleEndian.Uint64(reply) == crowd {
					nc.Write(unhex("01" + str("/go") + str("")))
				}
				nc.Write(wait)
				if answer, err := in.ReadByte(); err != nil || answer != 0 {
					b.Error(answer, err)
				}
			})
		}
		all.Wait()
		b.ReportMetric(float64((connected-start).Microseconds())/1000, "connect-ms")
		b.ReportMetric(float64((b.Elapsed()-connected).Microseconds())/1000, "add+wait-ms")
		for _, nc := range conns {
			nc.Close()
		}
	}
}

// BenchmarkMemory stores 100,000 keys of 1 KiB in a server in a process of its
// own and reports what that process then has of memory.
func BenchmarkMemory(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("reads /proc")
	}
	value := str(strings.Repeat("v", 1024))
	for b.Loop() {
		server := exec.Command(os.Args[0])
		server.Env = append(os.Environ(), serveEnv+"=1")
		stdin, err := server.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		stdout, err := server.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := server.Start(); err != nil {
			b.Fatal(err)
		}
		addr, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		before := residentKiB(b, server.Process.Pid)
		nc := raw(b, strings.TrimSpace(addr))
		out := bufio.NewWriterSize(nc, 32<<10)
		for i := range 100_000 {
			out.Write(unhex("01" + str(fmt.Sprintf("/key%06d", i)) + value))
		}
		out.Write(unhex("07"))
		out.Flush()
		reply := make([]byte, 8)
		if _, err := io.ReadFull(nc, reply); err != nil || binary.LittleEndian.Uint64(reply) != 100_000 {
			b.Fatal(reply, err)
		}
		b.ReportMetric(float64(before)/1024, "MiB-empty")
		b.ReportMetric(float64(residentKiB(b, server.Process.Pid))/1024, "MiB-full")
		stdin.Close()
		if err := server.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func residentKiB(b *testing.B, pid int) int {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

// serveEnv makes the test binary a server that prints its address and ends when
// its stdin does.
const serveEnv = "TCPSTORE_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		s, err := tcpstore.Listen(tcpstore.ServerConfig{Addr: "127.0.0.1:0"})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(s.Addr())
		io.Copy(io.Discard, os.Stdin)
		s.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}
