package flight_test

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/job/flight"
)

// A fake writes what PyTorch's recorder would. Source: FlightRecorderDetail.hpp.
type fake struct {
	version string
	groups  map[string]fakeGroup
	entries []entry
	first   int // number of the first entry
}

type fakeGroup struct{ desc, ranks string }

type entry struct {
	group     string
	seq       int
	op        string
	in, out   int
	dtype     string
	state     string
	at, ended int // ms
	p2p       bool
	retired   bool
	pg        int // which of the groups of that name
	frames    []any
}

// four are the groups of a job of four ranks.
var four = map[string]fakeGroup{
	"0": {"default_pg", "[0, 1, 2, 3]"},
	"1": {"dp", "[0, 1, 2, 3]"},
	"2": {"tp", "[0, 1]"},
	"3": {"tp", "[2, 3]"},
	"4": {"default_pg", "[0, 1]"}, // of another job
}

const epoch = 1_790_000_000_000 // ms

func (f *fake) tree() map[string]any {
	config := map[string]any{}
	var entries []any
	for i, e := range f.entries {
		g := f.groups[e.group]
		if g.ranks != "" {
			config[e.group] = map[string]any{"name": e.group, "desc": g.desc, "ranks": g.ranks}
		}
		m := map[string]any{
			"record_id": f.first + i, "pg_id": e.pg, "process_group": []any{e.group, g.desc}, "profiling_name": e.op,
			"collective_seq_id": e.seq, "p2p_seq_id": 0, "op_id": e.seq, "is_p2p": e.p2p,
			"time_created_ns": (epoch + e.at) * 1e6, "time_discovered_started_ns": nil, "time_discovered_completed_ns": nil,
			"state": cmp.Or(e.state, "completed"), "retired": e.retired || e.state == "", "timeout_ms": 600000, "thread_name": `a "thread"`,
			"input_sizes": []any{}, "input_dtypes": []any{}, "output_sizes": []any{}, "output_dtypes": []any{}, "duration_ms": 1.5,
		}
		if e.p2p {
			m["collective_seq_id"], m["p2p_seq_id"] = 0, e.seq
		}
		if e.state == "" {
			m["time_discovered_completed_ns"] = (epoch + e.at + 1 + e.ended) * 1e6
		}
		if e.in > 0 {
			m["input_sizes"], m["input_dtypes"] = []any{[]any{e.in / 2, 2}}, []any{cmp.Or(e.dtype, "Float")}
		}
		if e.out > 0 {
			m["output_sizes"], m["output_dtypes"] = []any{[]any{e.out}}, []any{cmp.Or(e.dtype, "Float")}
		}
		if e.frames != nil {
			m["frames"] = e.frames
		}
		entries = append(entries, m)
	}
	tree := map[string]any{"version": cmp.Or(f.version, "2.10"), "pg_config": config, "pg_status": map[string]any{}, "comm_lib_version": ""}
	if entries != nil {
		tree["entries"] = entries
	}
	return tree
}

func asJSON(t testing.TB, tree any) []byte {
	data, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func asPickle(_ testing.TB, tree any) []byte { return append(pickled([]byte("\x80\x02"), tree), '.') }

// pickled writes a value as torch's pickler does, without its memo.
func pickled(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 'N')
	case bool:
		if v {
			return append(b, 0x88)
		}
		return append(b, 0x89)
	case int:
		switch {
		case v >= 0 && v < 256:
			return append(b, 'K', byte(v))
		case v == int(int32(v)):
			return binary.LittleEndian.AppendUint32(append(b, 'J'), uint32(v))
		}
		return binary.LittleEndian.AppendUint64(append(b, 0x8a, 8), uint64(v))
	case float64:
		return append(b, "G\x3f\xf8\x00\x00\x00\x00\x00\x00"...)
	case string:
		return append(binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(v))), v...)
	case []any:
		b = append(b, "]("...)
		for _, item := range v {
			b = pickled(b, item)
		}
		return append(b, 'e')
	case map[string]any:
		b = append(b, "}("...)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b = pickled(pickled(b, key), v[key])
		}
		return append(b, 'u')
	}
	panic(fmt.Sprintf("%T", v))
}

// parse reads a job: a line for each rank, "0: dp 11 all_reduce 1024; tp 5 barrier". An entry has its group,
// number and operation, then what of this is there: the number of float32 it takes (and gives, after a
// slash), another type, a state ("waits" for scheduled, "runs" for started, "retired"), "@ms" when it was entered,
// "pg=5" if it is of another group of that name, and "in=PLACE". A first word "lost" says that the record has lost its beginning.
func parse(t testing.TB, job string, encode func(testing.TB, any) []byte) (dumps []*flight.Dump) {
	t.Helper()
	var r flight.Reader
	for line := range strings.Lines(job) {
		head, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		rank, err := strconv.Atoi(head)
		if err != nil {
			t.Fatal(err)
		}
		f := &fake{groups: four}
		for i, part := range strings.Split(rest, ";") {
			words := strings.Fields(part)
			if len(words) > 0 && words[0] == "lost" {
				f.first, words = 17, words[1:]
			}
			if len(words) > 0 && strings.HasPrefix(words[0], "v") {
				f.version, words = words[0][1:], words[1:]
			}
			if len(words) > 2 {
				f.entries = append(f.entries, parseEntry(t, rank, i, words))
			}
		}
		d, err := r.Read(encode(t, f.tree()))
		if err != nil {
			t.Fatal(err)
		}
		d.Rank = rank
		dumps = append(dumps, d)
	}
	return dumps
}

func parseEntry(t testing.TB, rank, i int, words []string) entry {
	t.Helper()
	e := entry{group: words[0], op: words[2], at: 10*i + rank}
	if !strings.Contains(e.op, ":") {
		e.op = "nccl:" + e.op
	}
	switch e.group {
	case "default":
		e.group = "0"
	case "dp":
		e.group = "1"
	case "tp":
		e.group = strconv.Itoa(2 + rank/2)
	}
	var err error
	if e.seq, err = strconv.Atoi(words[1]); err != nil {
		t.Fatal(err)
	}
	for _, word := range words[3:] {
		switch {
		case word == "waits":
			e.state = "scheduled"
		case word == "runs":
			e.state = "started"
		case word == "retired":
			e.state, e.retired = "scheduled", true
		case word == "p2p":
			e.p2p = true
		case strings.HasPrefix(word, "pg="):
			e.pg, err = strconv.Atoi(word[3:])
		case word[0] == '@':
			e.at, err = strconv.Atoi(word[1:])
		case word[0] == '+':
			e.ended, err = strconv.Atoi(word[1:])
		case strings.HasPrefix(word, "in="):
			e.frames = []any{
				map[string]any{"name": "all_reduce", "filename": "/opt/site-packages/torch/distributed/c10d.py", "line": 3},
				map[string]any{"name": "step", "filename": "/home/user/" + word[3:], "line": 18},
			}
		case strings.Contains(word, "->") || strings.Contains(word, "<-"):
			e.op += " " + word
			e.p2p = true
		case word[0] >= '0' && word[0] <= '9':
			in, out, both := strings.Cut(word, "/")
			if e.in, err = strconv.Atoi(in); err == nil {
				e.out = e.in
			}
			if both {
				e.out, err = strconv.Atoi(out)
			}
		default:
			e.dtype = word
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}
