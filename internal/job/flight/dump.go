package flight

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

// A Dump is what one rank's flight recorder has kept, oldest entries first. Of a group that was made anew,
// it has the last one's.
type Dump struct {
	// Rank, Taken and Ahead are the caller's to set: the rank in the job; when its recorder was asked,
	// by the rank's clock, zero if that is not known; and how far that clock is ahead.
	Rank  int
	Taken time.Time
	Ahead time.Duration

	Version string // of the format, such as 2.10
	Library string // that records: nccl, gloo; "" without entries
	Entries []Entry
	// Lost says that more was recorded than Entries: the recorder keeps the last TORCH_FR_BUFFER_SIZE.
	Lost bool
}

// A Group is a process group. Dumps of one Reader share it.
type Group struct {
	Name, Desc string // PyTorch's name, and the user's
	// Ranks are its members, by their rank in the group; nil if the dump does not tell, as gloo's do not.
	Ranks []int
}

// State is how far an operation is, as far as the rank knows. That it has Started is known only with
// TORCH_NCCL_ENABLE_TIMING.
type State uint8

// The states.
const (
	Scheduled State = iota
	Started
	Completed
)

// An Entry is an operation that the rank has entered.
type Entry struct {
	Group *Group `json:"-"`
	Op    *Op
	// Seq numbers the collectives of a group, and apart from these its sends and receives. Those that
	// one call has coalesced share a number.
	Seq       int64
	ID        int64 // of the group in this rank; one that is made anew under the same name has another
	Created   int64 // when it was entered, in ns since 1970 by the rank's clock
	Completed int64 `json:",omitempty"` // when the rank noticed its end, 0 if that is not known
	// Place is where in the user's program it was entered, "" without stacks. Those that have ended
	// have none, apart from the last.
	Place string `json:",omitempty"`
	State State  `json:",omitempty"`
	P2P   bool   `json:",omitempty"`
}

// An Op is what an operation does. Those that are equal are one pointer in the dumps of a Reader.
type Op struct {
	Name     string // as torch.distributed calls it, such as all_reduce
	From, To int    // group ranks of a send or receive; From is -1 where any may send, and To in other operations
	In, Out  string // what it takes and gives, "25 MiB float32"
}

// side is 1 of a receive, 0 otherwise.
func (o *Op) side() int {
	if o.Name == "recv" {
		return 1
	}
	return 0
}

// A Reader reads dumps one after the other. What they have in common is kept once.
type Reader struct {
	doc    document
	ops    map[string]*Op
	groups map[string]*Group
	key    []byte
}

const maxName = 100 // characters of a name that is printed

// Read reads one dump: JSON, or a pickle, which is not executed. The dump shares no memory with data.
func (r *Reader) Read(data []byte) (*Dump, error) {
	d := &Dump{}
	root, err := r.doc.parse(data)
	if err == nil {
		err = r.dump(d, r.doc.dict(root))
	}
	if err != nil {
		return nil, fmt.Errorf("flight recorder's dump: %w", err)
	}
	return d, nil
}

func (r *Reader) dump(d *Dump, root dict) error {
	doc := &r.doc
	d.Version = text.Line(root.text("version"), maxName)
	if !strings.HasPrefix(d.Version, "2.") {
		return fmt.Errorf("version %q of its format is not 2.x, which PyTorch 2.6 to 2.15 write", d.Version)
	}
	groups := map[string]*Group{}
	config := doc.items(root.get("pg_config"), kindDict)
	for i := 0; i+1 < len(config) && doc.work <= maxWork; i += 2 {
		g := doc.dict(config[i+1])
		ranks := g.text("ranks")
		doc.work += len(ranks) // a pickle can name one text many times
		groups[doc.text(config[i])] = r.group(doc.text(config[i]), g.text("desc"), ranks)
	}
	items := doc.items(root.get("entries"), kindList)
	if len(items) > maxEntries {
		return fmt.Errorf("%d entries, more than %d", len(items), maxEntries)
	}
	d.Entries = make([]Entry, len(items))
	for i, item := range items {
		if item.kind != kindDict {
			return fmt.Errorf("entry %d is not an entry", i)
		}
		record, library := r.entry(&d.Entries[i], doc.dict(item), groups, i == len(items)-1)
		d.Library = cmp.Or(d.Library, library)
		d.Lost = d.Lost || record != int64(i)
	}
	newest := map[*Group]int64{}
	for i := range d.Entries {
		newest[d.Entries[i].Group] = d.Entries[i].ID
	}
	d.Entries = slices.DeleteFunc(d.Entries, func(e Entry) bool { return e.ID != newest[e.Group] })
	if doc.work > maxWork {
		return fmt.Errorf("more than %d values to look at", maxWork)
	}
	return nil
}

// group returns the group of that name with these members, "[0, 1]".
func (r *Reader) group(name, desc, ranks string) *Group {
	if r.groups == nil {
		r.groups = map[string]*Group{}
	}
	key := name + "\x00" + desc + "\x00" + ranks
	if r.groups[key] == nil {
		g := &Group{Name: text.Line(name, maxName), Desc: text.Line(desc, maxName)}
		_ = json.Unmarshal([]byte(ranks), &g.Ranks)
		sorted := slices.Sorted(slices.Values(g.Ranks))
		if len(sorted) == 0 || sorted[0] < 0 || len(slices.Compact(sorted)) < len(g.Ranks) {
			g.Ranks = nil
		}
		r.groups[key] = g
	}
	return r.groups[key]
}

// entry reads one entry and returns its number in the recorder, and the library that records.
func (r *Reader) entry(e *Entry, in dict, groups map[string]*Group, last bool) (record int64, library string) {
	doc := &r.doc
	frames := in.get("frames")
	record = in.get("record_id").n
	group := doc.items(in.get("process_group"), kindList)
	e.ID = in.get("pg_id").n
	seq, p2p := in.get("collective_seq_id").n, in.get("p2p_seq_id").n
	name := in.get("profiling_name")
	e.Created = in.get("time_created_ns").n
	inputs := [2]value{in.get("input_sizes"), in.get("input_dtypes")}
	e.Op = r.op(name, inputs, [2]value{in.get("output_sizes"), in.get("output_dtypes")})
	state := doc.bytes(in.get("state"))
	e.Completed = in.get("time_discovered_completed_ns").n
	retired := in.get("retired").n != 0
	if e.Seq, e.P2P = seq, in.get("is_p2p").n != 0; e.P2P {
		e.Seq = p2p
	}
	// gloo's recorder never says that an operation has completed. NCCL's retires those, too, that have
	// run out of time.
	prefix, _, _ := bytes.Cut(doc.bytes(name), []byte(":"))
	retired = retired && !bytes.HasSuffix(bytes.TrimSuffix(prefix, []byte("x")), []byte("ccl"))
	switch {
	case string(state) == "completed" || retired:
		e.State = Completed
	case string(state) == "started":
		e.State = Started
	}
	if len(group) == 2 {
		e.Group = groups[string(doc.bytes(group[0]))]
		if e.Group == nil {
			e.Group = r.group(doc.text(group[0]), doc.text(group[1]), "")
		}
	}
	e.Group = cmp.Or(e.Group, r.group("", "", ""))
	if last || e.State != Completed {
		e.Place = r.place(frames)
	}
	return record, text.Line(string(prefix), maxName)
}

// op returns the one Op of that name with inputs and outputs of these sizes and types.
func (r *Reader) op(name value, in, out [2]value) *Op {
	doc := &r.doc
	key := append(r.key[:0], doc.bytes(name)...)
	for _, list := range [4]value{in[0], in[1], out[0], out[1]} {
		items := doc.items(list, kindList)
		key = binary.AppendUvarint(append(key, 0), uint64(len(items)))
		for _, item := range items {
			dims := doc.items(item, kindList)
			key = binary.AppendUvarint(key, uint64(len(dims)))
			for _, dim := range dims {
				key = binary.AppendVarint(key, dim.n)
			}
			key = append(append(key, doc.bytes(item)...), 0)
		}
	}
	r.key = key
	op := r.ops[string(key)]
	if op == nil {
		if r.ops == nil {
			r.ops = map[string]*Op{}
		}
		op = newOp(doc.text(name))
		op.In, op.Out = doc.tensors(in), doc.tensors(out)
		r.ops[string(key)] = op
	}
	return op
}

// calls are the functions of torch.distributed whose operations have other names.
var calls = map[string]string{
	"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor",
	"all_reduce_barrier": "barrier", "_broadcast_oop": "broadcast", "_reduce_oop": "reduce",
}

// newOp reads a name such as "nccl:all_reduce", "nccl:send 1->2" or "gloo:recv 3<-?".
// Source: Op in torch/distributed/flight_recorder/components/types.py.
func newOp(name string) *Op {
	name, peers, _ := strings.Cut(text.Line(name[strings.LastIndexByte(name, ':')+1:], maxName), " ")
	op := &Op{Name: cmp.Or(calls[name], name, "an operation without a name"), From: -1, To: -1}
	from, to, sends := strings.Cut(peers, "->")
	if !sends {
		to, from, _ = strings.Cut(peers, "<-")
	}
	if n, err := strconv.ParseUint(from, 10, 31); err == nil {
		op.From = int(n)
	}
	if n, err := strconv.ParseUint(to, 10, 31); err == nil && (op.From >= 0 || !sends) {
		op.To = int(n)
	}
	return op
}

// types are PyTorch's names of types and their sizes, by their names in C++.
// Source: AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS in c10/core/ScalarType.h.
var types = map[string]struct {
	name string
	size int64
}{
	"Float": {"float32", 4}, "Double": {"float64", 8}, "Half": {"float16", 2}, "BFloat16": {"bfloat16", 2},
	"Long": {"int64", 8}, "Int": {"int32", 4}, "Short": {"int16", 2}, "Char": {"int8", 1}, "Byte": {"uint8", 1},
	"Bool": {"bool", 1}, "Float8_e4m3fn": {"float8_e4m3fn", 1}, "Float8_e5m2": {"float8_e5m2", 1},
}

// tensors writes the size of tensors, or their number of elements if they are not of one known type.
func (d *document) tensors(sizesAndTypes [2]value) string {
	all, name := int64(0), ""
	for _, size := range d.items(sizesAndTypes[0], kindList) {
		elements := int64(1)
		for _, dim := range d.items(size, kindList) {
			elements *= dim.n
		}
		all += elements
	}
	for i, v := range d.items(sizesAndTypes[1], kindList) {
		if s := d.text(v); i == 0 || s == name {
			name = s
		} else {
			name = "several types"
			break
		}
	}
	if known, ok := types[name]; ok {
		return text.Size(all*known.size) + " " + known.name
	} else if name != "" && sizesAndTypes[0].kind == kindList {
		name = fmt.Sprintf("%d elements of %s", all, name)
	}
	return text.Line(name, maxName) // without sizes it is from Encode, which writes them into the type
}

// place returns the innermost frame of the user's program: "train.py:88 in load_batch".
func (r *Reader) place(frames value) string {
	for _, v := range r.doc.items(frames, kindList) {
		frame := r.doc.dict(v)
		name, file := frame.text("name"), frame.text("filename")
		if file != "" && !strings.Contains(file, "-packages/") && !strings.Contains(file, "/torch/distributed/") {
			return text.Line(fmt.Sprintf("%s:%d in %s", path.Base(file), frame.get("line").n, name), maxName)
		}
	}
	return ""
}
