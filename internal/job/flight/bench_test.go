package flight_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-run/muster/internal/job/flight"
)

// A generator writes the dump of one rank of a large job that hangs: as torch does, with names that
// the pickle keeps in its memo.
type generator struct {
	b    []byte
	memo map[string]int
	json bool
}

func (g *generator) text(s string) {
	if g.json {
		g.b = fmt.Appendf(g.b, "%q", s)
		return
	}
	i, ok := g.memo[s]
	switch {
	case ok && i < 256:
		g.b = append(g.b, 'h', byte(i))
	case ok:
		g.b = binary.LittleEndian.AppendUint32(append(g.b, 'j'), uint32(i))
	default:
		g.b = append(binary.LittleEndian.AppendUint32(append(g.b, 'X'), uint32(len(s))), s...)
		if i = len(g.memo); i < 256 {
			g.b = append(g.b, 'q', byte(i))
		} else {
			g.b = binary.LittleEndian.AppendUint32(append(g.b, 'r'), uint32(i))
		}
		g.memo[s] = i
	}
}

// value writes any of the values of an entry; keys and values in turn make a dict.
func (g *generator) value(v any) {
	switch v := v.(type) {
	case string:
		g.text(v)
	case []any:
		open, end := "](", "e"
		if g.json {
			open, end = "[", "]"
		}
		g.several(open, end, v, false)
	case frame:
		key := fmt.Sprint(v)
		if _, ok := g.memo[key]; ok {
			g.text(key)
			return
		}
		g.value(dict(v))
		g.b = append(g.b, 'q', byte(len(g.memo)))
		g.memo[key] = len(g.memo)
	case dict:
		open, end := "}(", "u"
		if g.json {
			open, end = "{", "}"
		}
		g.several(open, end, v, true)
	default:
		if g.json {
			g.b = append(g.b, strings.ReplaceAll(fmt.Sprint(v), "<nil>", "0")...)
			return
		}
		g.b = pickled(g.b, v)
	}
}

type (
	dict  []any
	frame []any // a dict that a pickle has once
)

func (g *generator) several(open, end string, items []any, named bool) {
	g.b = append(g.b, open...)
	for i, item := range items {
		if g.json && i > 0 {
			g.b = append(g.b, map[bool]byte{true: ':', false: ','}[named && i%2 == 1])
		}
		g.value(item)
	}
	g.b = append(g.b, end...)
}

const world, kept = 1024, 2000

// dump is a job of 1,024 ranks, eight of them a tensor group, that hangs in its last all_reduce, to
// which rank 777 has not come.
func (g *generator) dump(rank int) []byte {
	g.b, g.memo = g.b[:0], map[string]int{}
	if !g.json {
		g.b = append(g.b, "\x80\x02"...)
	}
	all := make([]string, world)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	base := rank / 8 * 8
	tp := fmt.Sprint(2 + rank/8)
	frames := []any{frame{"name", "all_reduce", "filename", "/opt/site-packages/torch/distributed/c10d.py", "line", 10},
		frame{"name", "step", "filename", "/home/user/train.py", "line", 88}}
	var entries []any
	n := kept
	if rank == 777 {
		n--
	}
	for i := range n {
		group, seq, state, ended := []any{tp, "tp"}, i-i/4, "completed", any((epoch+i*10+5)*1000000)
		if i%4 == 3 {
			group, seq = []any{"1", "dp"}, i/4
		}
		if i == kept-1 {
			state, ended = "scheduled", nil
		}
		e := dict{"record_id", i, "pg_id", 1 + i%4/3, "process_group", group, "thread_name", "python3", "thread_id", "140062924190016",
			"collective_seq_id", seq, "p2p_seq_id", 0, "op_id", seq, "profiling_name", "nccl:all_reduce",
			"time_created_ns", (epoch+i*10)*1000000 + rank, "input_sizes", []any{[]any{4096, 1024 + i%7}}, "input_dtypes", []any{"BFloat16"},
			"output_sizes", []any{[]any{4096, 1024 + i%7}}, "output_dtypes", []any{"BFloat16"}, "state", state, "time_discovered_started_ns", nil,
			"time_discovered_completed_ns", ended, "retired", ended != nil, "timeout_ms", 600000, "is_p2p", false}
		if !g.json {
			e = append(e, "frames", frames)
		}
		entries = append(entries, e)
	}
	g.value(dict{"version", "2.10", "pg_config", dict{
		"1", dict{"name", "1", "desc", "dp", "ranks", "[" + strings.Join(all, ", ") + "]"},
		tp, dict{"name", tp, "desc", "tp", "ranks", "[" + strings.Join(all[base:base+8], ", ") + "]"},
	}, "entries", entries})
	if !g.json {
		g.b = append(g.b, '.')
	}
	return g.b
}

// cpuTime is what this process has used of its CPUs.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAnalysis reads and compares the dumps of a large job. Writing them is not counted, nor what other programs
// take of the CPUs.
func BenchmarkAnalysis(b *testing.B) {
	for _, format := range []string{"pickle", "json"} {
		b.Run(format, func(b *testing.B) {
			for range b.N {
				g := generator{json: format == "json"}
				var reader flight.Reader
				var dumps []*flight.Dump
				var took time.Duration
				size := 0
				for rank := range world {
					data := g.dump(rank)
					size += len(data)
					start := cpuTime()
					d, err := reader.Read(data)
					if err != nil {
						b.Fatal(err)
					}
					took += cpuTime() - start
					d.Rank = rank
					dumps = append(dumps, d)
				}
				start := cpuTime()
				v := flight.Compare(dumps, flight.Config{})
				compared := cpuTime() - start
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				if want := "1023 ranks wait in all_reduce 499 of group dp (8.0 MiB bfloat16); rank 777 has not come"; !strings.HasPrefix(v.Text, want) {
					b.Fatalf("%s\nwant %s", v.Text, want)
				}
				b.ReportMetric((took + compared).Seconds(), "s/job")
				b.ReportMetric(compared.Seconds(), "s/compare")
				b.ReportMetric(float64(m.Sys)/(1<<20), "MiB")
				b.ReportMetric(float64(size)/(1<<20), "MiB-read")
			}
		})
	}
}
