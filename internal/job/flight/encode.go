package flight

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// Bounds of what Encode keeps of a group: entries before the first that has not ended, and from it on.
const (
	keepBefore = 2
	keepFrom   = 16
	keepGroups = 64
)

// A brief is a dump as Encode writes it, with the entries of each group together.
type brief struct {
	Version, Library string
	Lost             bool
	Taken            time.Time `json:",omitzero"`
	Groups           []briefGroup
}

type briefGroup struct {
	Name, Desc, Ranks string
	Entries           []Entry
}

// Encode writes what Compare needs of a dump to find who is missing or different, for Decode, with times by the
// clock that Ahead is about.
func (d *Dump) Encode() []byte {
	b, index := brief{Version: d.Version, Library: d.Library, Lost: d.Lost}, map[*Group]int{}
	if !d.Taken.IsZero() {
		b.Taken = d.Taken.Add(-d.Ahead)
	}
	for _, e := range d.Entries {
		i, known := index[e.Group]
		if !known {
			i, index[e.Group] = len(b.Groups), len(b.Groups)
			g := briefGroup{Name: e.Group.Name, Desc: e.Group.Desc}
			if e.Group.Ranks != nil { // as PyTorch writes them
				g.Ranks = strings.ReplaceAll(fmt.Sprint(e.Group.Ranks), " ", ", ")
			}
			b.Groups = append(b.Groups, g)
		}
		if e.Created -= int64(d.Ahead); e.Completed > 0 {
			e.Completed -= int64(d.Ahead)
		}
		b.Groups[i].Entries = append(b.Groups[i].Entries, e)
	}
	b.Lost = b.Lost || len(b.Groups) > keepGroups
	b.Groups = b.Groups[:min(len(b.Groups), keepGroups)]
	for i := range b.Groups {
		all := b.Groups[i].Entries
		first := slices.IndexFunc(all, func(e Entry) bool { return e.State != Completed })
		if first < 0 {
			first = len(all)
		}
		kept := all[max(0, first-keepBefore):min(len(all), first+keepFrom)]
		b.Groups[i].Entries, b.Lost = kept, b.Lost || len(kept) < len(all)
	}
	body, _ := json.Marshal(b)
	return body
}

// Decode reads what Encode has written.
func (r *Reader) Decode(data []byte) (*Dump, error) {
	var b brief
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("flight recorder's dump in brief: %w", err)
	}
	d := &Dump{Version: text.Line(b.Version, maxName), Library: text.Line(b.Library, maxName), Lost: b.Lost,
		Taken: b.Taken}
	for _, g := range b.Groups {
		group := r.group(g.Name, g.Desc, g.Ranks)
		text.Each(&g.Entries, func(s string) string { return text.Line(s, maxName) })
		for _, e := range g.Entries {
			if e.Group = group; e.Op == nil {
				return nil, errors.New("flight recorder's dump in brief: an entry without an operation")
			}
			d.Entries = append(d.Entries, e)
		}
	}
	slices.SortStableFunc(d.Entries, func(a, b Entry) int { return cmp.Compare(a.Created, b.Created) })
	return d, nil
}

// A Position is how far a rank is in a group, in collectives.
type Position struct {
	Group *Group
	Op    string    // the first that has not ended, "" if all have;
	Seq   int64     // its number,
	Since time.Time // and when the rank entered it; if all have ended, when it entered What
	Last  int64     // the number of the last that the rank has entered
	What  string    // what that is, "all_reduce of 25 MiB float32", in the group that the rank has entered last; else ""
}

// Positions returns how far the rank is in each of its groups.
func (d *Dump) Positions() (all []Position) {
	index, newest, last := map[*Group]int{}, 0, Entry{}
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
		all[i].Last, newest, last = e.Seq, i, e
	}
	if len(all) == 0 {
		return nil
	}
	p := &all[newest]
	p.What = last.Op.Name
	if size := last.Op.same(); size != "" && p.What != "barrier" {
		p.What += " of " + size
	}
	if p.Op == "" {
		p.Since = time.Unix(0, last.Created)
	}
	return all
}

// Progress returns how far a rank is by the part of its dumps that says so of each group, as a text
// that changes with it; "" if no group is known. waits says that something is under way.
func Progress(dumps [][]byte) (at string, waits bool) {
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
			said := func(key string) string { // a text in JSON
				v := g.get(key)
				return cmp.Or(r.doc.text(v), strconv.FormatInt(v.n, 10))
			}
			enqueued, completed := said("last_enqueued_collective"), said("last_completed_collective")
			waits = waits || enqueued != completed
			at += fmt.Sprintf("%.20s:%.20s/%.20s ", r.doc.text(groups[i]), enqueued, completed)
		}
	}
	return at, waits
}
