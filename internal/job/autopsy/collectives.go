package autopsy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/job/flight"
)

const maxUnpacked = 4 << 20

// read reads a worker's dumps. Those of one Reader may be compared.
func (r *Report) read(w *Worker, reader *flight.Reader) (dumps []*flight.Dump) {
	add := func(d *flight.Dump, err error) {
		if err != nil {
			w.Problems = append(slices.Clip(w.Problems), err.Error()) // others may have these
			return
		}
		d.Rank = w.Rank
		dumps = append(dumps, d)
	}
	for _, f := range w.Flight {
		if f.data != nil && w.Dumps == nil {
			d, err := reader.Read(f.data)
			if err == nil {
				d.Taken, d.Ahead = f.taken, -r.behind
			}
			add(d, err)
		}
	}
	for _, packed := range w.Dumps {
		data := []byte(nil)
		if z, err := gzip.NewReader(bytes.NewReader(packed)); err == nil {
			data, _ = io.ReadAll(io.LimitReader(z, maxUnpacked))
		}
		add(reader.Decode(data))
	}
	return dumps
}

// dumps packs a worker's dumps.
func (r *Report) dumps(w *Worker) (all [][]byte) {
	dumps := r.read(w, new(flight.Reader))
	for _, d := range dumps {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(d.Encode())
		_ = z.Close()
		all = append(all, b.Bytes())
	}
	return all
}

// Judge compares what the workers' flight recorders have, one library after the other, for Collectives.
func (r *Report) Judge() {
	var reader flight.Reader
	dumps, known := map[string][]*flight.Dump{}, []int(nil)
	for i := range r.Workers {
		all := r.read(&r.Workers[i], &reader)
		for _, d := range all {
			dumps[d.Library] = append(dumps[d.Library], d)
		}
		if len(all) > 0 {
			known = append(known, r.Workers[i].Rank)
		}
	}
	delete(dumps, "") // those without entries
	workers := map[int]Worker{}
	for _, w := range r.Workers {
		workers[w.Rank] = w
	}
	places, late := map[int]string{}, map[int]bool{}
	for _, v := range r.views() {
		late[v.group.Ranks[0]] = v.group.Collective && v.group.State == ""
		places[v.group.Ranks[0]] = strings.TrimSuffix(v.group.Name, ", no Python stacks")
	}
	cfg := flight.Config{
		World: r.world,
		Host:  func(rank int) string { return workers[rank].Host },
		Place: func(rank int) string { return places[rank] },
		Silent: func(rank int) string {
			if late[rank] { // it waits, too, and has had no time to answer
				return ""
			}
			return workers[rank].Silent
		},
	}
	for _, library := range slices.Backward(slices.Sorted(maps.Keys(dumps))) { // nccl before gloo
		list := dumps[library]
		for _, rank := range known {
			if !slices.ContainsFunc(list, func(d *flight.Dump) bool { return d.Rank == rank }) {
				list = append(list, &flight.Dump{Rank: rank, Library: library})
			}
		}
		v := flight.Compare(list, cfg)
		if r.Collectives == nil || r.Named() == nil && (names(&v) || v.Kind == flight.Stuck) {
			r.Collectives = &v
		}
	}
}

// Progress returns how far a worker's process groups are by what its witness answers, as flight.Progress
// does.
func Progress(body []byte) (at string, waits bool) {
	var found testimony
	if json.Unmarshal(body, &found) != nil {
		return "", false
	}
	return flight.Progress(found.Dumps)
}

// Testimony returns the dumps that a worker's witness has given, and where its main thread is: "load_batch
// (train.py:88)"; "" without stacks.
func Testimony(body []byte) (dumps []*flight.Dump, where string) {
	var found testimony
	if json.Unmarshal(body, &found) != nil {
		return nil, ""
	}
	for _, data := range found.Dumps {
		if d, err := new(flight.Reader).Read(data); err == nil {
			dumps = append(dumps, d)
		}
	}
	if len(found.Threads) > 0 {
		where = strings.TrimPrefix(view(&Worker{Python: Python{Threads: tidy(found.Threads)}}).group.Name, "in ")
	}
	return dumps, where
}

// names reports whether a verdict names ranks that make the others wait.
func names(v *flight.Verdict) bool {
	return len(v.Ranks) > 0 && (v.Kind == flight.Missing || v.Kind == flight.Different || v.Kind == flight.Order)
}

// Named returns the ranks for which the others wait by their flight recorders; nil if these do not tell.
func (r *Report) Named() []int {
	if v := r.Collectives; v != nil && names(v) {
		return slices.Clone(v.Ranks)
	}
	return nil
}
