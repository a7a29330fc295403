package flight

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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
	byGroup, order := map[*Group][]Entry{}, []*Group(nil)
	for _, e := range d.Entries {
		if byGroup[e.Group] == nil {
			order = append(order, e.Group)
		}
		byGroup[e.Group] = append(byGroup[e.Group], e)
	}
	config, entries, record := map[string]any{}, []any{}, 0
	for _, g := range order[max(0, len(order)-keepGroups):] {
		all := byGroup[g]
		i := slices.IndexFunc(all, func(e Entry) bool { return e.State != Completed })
		if i < 0 {
			i = len(all)
		}
		if g.Ranks != nil {
			config[g.Name] = map[string]any{"name": g.Name, "desc": g.Desc,
				"ranks": strings.ReplaceAll(fmt.Sprint(g.Ranks), " ", ", ")}
		}
		if kept := all[max(0, i-keepBefore):min(len(all), i+keepFrom)]; len(kept) < len(all) || d.Lost {
			record = cmp.Or(record, 1) // a number that says so
			all = kept
		}
		for _, e := range all {
			entries = append(entries, d.encode(&e, record))
			record++
		}
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
	return map[string]any{
		"record_id": record, "pg_id": e.ID, "process_group": [2]string{e.Group.Name, e.Group.Desc},
		"collective_seq_id": e.Seq, "p2p_seq_id": e.Seq, "is_p2p": e.P2P, "profiling_name": name,
		"time_created_ns": e.Created - int64(d.Ahead), "time_discovered_completed_ns": ended,
		"state": [...]string{"scheduled", "started", "completed"}[e.State], "retired": e.State == Completed,
		"input_dtypes": []string{e.Op.In}, "output_dtypes": []string{e.Op.Out},
	}
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
