//go:build linux

package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// react: N workers, of which the last one dies once all are there. What
// happens in the next attempt says the second argument: "fail" the same again,
// "succeed" all exit 0, each at its own moment.
func (w *worker) react(args []string) {
	n, second := atoi(args[0]), args[1]
	w.onTerm()
	last := w.rank == strconv.Itoa(n-1)
	again := w.restart != "0"
	switch {
	case again && second == "succeed":
		w.await(n)
		pause()
		w.note("end", now(), 0)
		os.Exit(0)
	case last:
		w.await(n)
		pause()
		w.note("death", now(), 0)
		os.Exit(3)
	}
	select {}
}

// onTerm makes SIGTERM be noted, and end the process.
func (w *worker) onTerm() {
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	go func() {
		<-term
		w.note("term", now(), 0)
		os.Exit(1)
	}()
}

// await returns once n workers of this attempt are there.
func (w *worker) await(n int) {
	for {
		text, err := os.ReadFile(os.Getenv("BENCH_EVENTS"))
		if err != nil {
			os.Exit(66)
		}
		here := 0
		for line := range bytes.Lines(text) {
			f := bytes.Fields(line)
			if len(f) > 2 && string(f[0]) == "start" && string(f[2]) == w.restart {
				here++
			}
		}
		if here >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// pause waits for a random time, longer than a poll of torchrun's, so that
// what follows falls into any moment of it.
func pause() {
	time.Sleep(30*time.Millisecond + time.Duration(rand.Int64N(int64(120*time.Millisecond))))
}

// flood writes lines to as many streams in turn, stdout and then stderr, in
// blocks of 8 KiB that end where they end, as Python and C buffer output that
// is not a terminal. It begins when the file named by the last argument exists.
func (w *worker) flood(args []string) {
	lines, size, streams, start := atoi(args[0]), atoi(args[1]), atoi(args[2]), args[3]
	for {
		if _, err := os.Stat(start); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	const block = 8 << 10
	files := [2]*os.File{os.Stdout, os.Stderr}
	bufs := [2][]byte{}
	begin := now()
	for seq := range lines {
		k := seq % streams
		bufs[k] = appendLine(bufs[k], w.rank, seq, size)
		for len(bufs[k]) >= block {
			if _, err := files[k].Write(bufs[k][:block]); err != nil {
				os.Exit(74)
			}
			bufs[k] = bufs[k][:copy(bufs[k], bufs[k][block:])]
		}
	}
	for k, f := range files {
		if _, err := f.Write(bufs[k]); err != nil {
			os.Exit(74)
		}
	}
	w.note("wrote", now(), now()-begin)
	var ru unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &ru)
	w.note("cpu", now(), ru.Utime.Nano()+ru.Stime.Nano())
}

// appendLine appends line number seq of a rank: "<rank> <seq> " and filler that
// depends on both, size bytes with the newline. The verifier in bench/tee.go
// makes the same.
func appendLine(b []byte, rank string, seq, size int) []byte {
	from := len(b)
	b = append(b, rank...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(seq), 10)
	b = append(b, ' ')
	c := byte('a' + (seq+len(b)-from)%26)
	for len(b)-from < size-1 {
		b = append(b, c)
	}
	return append(b, '\n')
}

// ticker writes count lines that hold the time, about gap microseconds apart.
func (w *worker) ticker(args []string) {
	count, gap := atoi(args[0]), int64(atoi(args[1]))
	var b []byte
	for range count {
		time.Sleep(time.Duration(gap/2+rand.Int64N(gap)) * time.Microsecond)
		b = append(b[:0], "t "...)
		b = strconv.AppendInt(b, now(), 10)
		b = append(b, '\n')
		os.Stdout.Write(b)
	}
}
