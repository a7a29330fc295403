package flight

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of what Encode keeps of a group: entries before the first that has not ended, and from it on.
const (
	keepBefore = 2
	keepFrom   = 16
	keepGroups = 64
)

// Encode writes what Compare needs of a dump to find who is missing or different, as JSON that Read
// reads, with times by the clock that Ahead is about.
func (d *Dump) Encode() []byte {
	counts, first := map[*Group]int{}, map[*Group]int{} // entries, and the first that has not ended
	for _, e := range d.Entries {
		if counts[e.Group]++; e.State != Completed && first[e.Group] == 0 {
			first[e.Group] = counts[e.Group]
		}
	}
	config, entries, record := map[string]any{}, []any{}, 0
	if d.Lost {
		record = 1 // a number that says so
	}
	seen := map[*Group]int{}
	for _, e := range d.Entries {
		seen[e.Group]++
		from := cmp.Or(first[e.Group], counts[e.Group]+1)
		if n := seen[e.Group]; n < from-keepBefore || n >= from+keepFrom || len(seen) > keepGroups {
			record = max(record, len(entries)+1)
			continue
		}
		if e.Group.Ranks != nil {
			config[e.Group.Name] = map[string]any{"name": e.Group.Name, "desc": e.Group.Desc,
				"ranks": strings.ReplaceAll(fmt.Sprint(e.Group.Ranks), " ", ", ")}
		}
		entries = append(entries, d.encode(&e, record))
		record++
	}
	body, _ := json.Marshal(map[string]any{"version": d.Version, "pg_config": config, "entries": entries})
	return body
}

func (d *Dump) encode(e *Entry, record int) map[string]any {
	name, ended := d.Library+":"+e.Op.Name, int64(0)
	if peer := func(rank int) string { return strings.ReplaceAll(fmt.Sprint(rank), "-1", "?") }; e.Op.To >= 0 {
		if name += " " + peer(e.Op.From) + "->" + peer(e.Op.To); e.Op.side() == 1 {
			name = d.Library + ":" + e.Op.Name + " " + peer(e.Op.To) + "<-" + peer(e.Op.From)
		}
	}
	if e.Completed > 0 {
		ended = e.Completed - int64(d.Ahead)
	}
	var frames []any
	if at, name, ok := strings.Cut(e.Place, " in "); ok {
		i := strings.LastIndexByte(at, ':')
		line, _ := strconv.Atoi(at[i+1:])
		frames = []any{map[string]any{"name": name, "filename": at[:max(0, i)], "line": line}}
	}
	return map[string]any{
		"frames": frames, "record_id": record, "pg_id": e.ID, "process_group": [2]string{e.Group.Name, e.Group.Desc},
		"collective_seq_id": e.Seq, "p2p_seq_id": e.Seq, "is_p2p": e.P2P, "profiling_name": name,
		"time_created_ns": e.Created - int64(d.Ahead), "time_discovered_completed_ns": ended,
		"state": [...]string{"scheduled", "started", "completed"}[e.State], "retired": e.State == Completed,
		"input_dtypes": []string{e.Op.In}, "output_dtypes": []string{e.Op.Out},
	}
}

// A Position is how far a rank is in a group, in collectives.
type Position struct {
	Group *Group
	Op    string    // the first that has not ended, "" if all have;
	Seq   int64     // its number,
	Since time.Time // and when the rank entered it
	Last  int64     // the number of the last that the rank has entered
}

// Positions returns how far the rank is in each of its groups.
func (d *Dump) Positions() (all []Position) {
	index := map[*Group]int{}
	for _, e := range d.Entries {
		i, known := index[e.Group]
		if e.P2P {
			continue
		} else if !known {
			i = len(all)
			index[e.Group], all = i, append(all, Position{Group: e.Group})
		}
		if p := &all[i]; e.State != Completed && p.Op == "" {
			p.Op, p.Seq, p.Since = e.Op.Name, e.Seq, time.Unix(0, e.Created)
		}
		all[i].Last = e.Seq
	}
	return all
}

// Progress returns how far a rank is by the part of its dumps that says so of each group, as a text
// that changes with it; "" if no group is known. waits says that something is under way.
func Progress(dumps []json.RawMessage) (at string, waits bool) {
	for _, data := range dumps {
		var r Reader
		root, err := r.doc.parse(data)
		if err != nil {
			continue
		}
		in := r.doc.dict(root)
		groups := r.doc.items(in.get("pg_status"), kindDict)
		for i := 0; i+1 < len(groups); i += 2 {
			g := r.doc.dict(groups[i+1])
			enqueued, completed := g.text("last_enqueued_collective"), g.text("last_completed_collective")
			waits = waits || enqueued != completed
			at += fmt.Sprintf("%.20s:%.20s/%.20s ", r.doc.text(groups[i]), enqueued, completed)
		}
	}
	return at, waits
}
