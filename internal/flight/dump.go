package flight

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/text"
)

const (
	maxMembers = 1 << 20 // ranks of a group
	maxName    = 100     // characters of a name that is printed
)

// A Dump is what one rank's flight recorder has kept, oldest entries first.
type Dump struct {
	// Rank, Taken and Ahead are the caller's to set: the rank in the job, when its recorder was
	// asked, by the rank's clock, zero if that is not known, and how far that clock is ahead.
	Rank  int
	Taken time.Time
	Ahead time.Duration

	Version string // of the format, such as 2.10
	Entries []Entry
	// Lost says that earlier operations than Entries were recorded: the recorder keeps the last
	// TORCH_FR_BUFFER_SIZE, or only those that have not ended.
	Lost bool
}

// A Group is a process group. Dumps of one Reader share it.
type Group struct {
	Name string
	Desc string // the user's name for it
	// Ranks are its members, by their rank in the group; nil if the dump does not tell, as gloo's do not.
	Ranks []int
}

const defaultGroup = "default_pg"

// key is what is the same in all dumps of the group.
func (g *Group) key() string { return g.Name + "\x00" + text.Ranges(g.Ranks, ",") }

// title names the group in a sentence.
func (g *Group) title() string {
	switch g.Desc {
	case defaultGroup:
		return "the default group"
	case "", "undefined":
		return "group " + g.Name
	}
	return "group " + g.Desc
}

// State is how far an operation is, as far as the rank knows.
type State uint8

// The states. That an operation has Started is known with TORCH_NCCL_ENABLE_TIMING only.
const (
	Scheduled State = iota
	Started
	Completed
)

// An Entry is an operation that the rank has entered.
type Entry struct {
	Group *Group
	Op    *Op
	// Seq numbers the collectives of a group, and apart from these its sends and receives. Those that
	// one call has coalesced share a number.
	Seq       int64
	Created   int64 // when it was entered, in ns since 1970 by the rank's clock
	Completed int64 // when the rank noticed its end, 0 if that is not known
	// Place is where in the user's program it was entered, "" without stacks. Those that have ended
	// have none, apart from the last.
	Place string
	State State
	P2P   bool
}

// An Op is what an operation does. Those that are equal are one pointer, in the dumps of one Reader.
type Op struct {
	Name string // as torch.distributed calls it, such as all_reduce
	// From and To are the group ranks of a send or receive; From is -1 where any may send.
	From, To int
	In, Out  Tensors
}

const recv = "recv"

// self is the group rank of the one who sends or receives, -1 if the operation does neither.
func (o *Op) self() int {
	if o.Name == recv {
		return o.To
	}
	return o.From
}

// Tensors are an operation's inputs or outputs.
type Tensors struct {
	Elements int64 // in all
	Type     string
}

// A Reader reads dumps one after the other. What they have in common is kept once.
type Reader struct {
	doc    document
	ops    map[string]*Op
	groups map[string]*Group
	key    []byte
}

// Read reads one dump: JSON, or a pickle, which is not executed.
func (r *Reader) Read(data []byte) (*Dump, error) {
	if r.ops == nil {
		r.ops, r.groups = map[string]*Op{}, map[string]*Group{}
	}
	r.doc.reset(data)
	root, err := r.doc.parse()
	if err != nil {
		return nil, fmt.Errorf("flight recorder's dump: %w", err)
	}
	d := &Dump{}
	if err := r.dump(d, root); err != nil {
		return nil, fmt.Errorf("flight recorder's dump: %w", err)
	}
	return d, nil
}

func (r *Reader) dump(d *Dump, root value) error {
	doc := &r.doc
	var entries, config value
	for key, v := range doc.fields(root) {
		switch string(doc.bytes(key)) {
		case "version":
			d.Version = text.Line(doc.text(v), maxName)
		case "pg_config":
			config = v
		case "entries":
			entries = v
		}
	}
	if major, _, _ := strings.Cut(d.Version, "."); major != "2" {
		return fmt.Errorf("version %q of its format; 2.x is known, which PyTorch 2.6 to 2.15 write", d.Version)
	}
	groups := r.config(config)
	items := doc.items(entries, kindList)
	d.Entries = make([]Entry, len(items))
	for i, item := range items {
		if item.kind != kindDict {
			return fmt.Errorf("entry %d is not an entry", i)
		}
		record := r.entry(&d.Entries[i], item, groups, i == len(items)-1)
		d.Lost = d.Lost || record != int64(i)
	}
	if doc.work > maxWork {
		return fmt.Errorf("more than %d values to look at", maxWork)
	}
	return nil
}

// config returns the groups by their names.
func (r *Reader) config(config value) map[string]*Group {
	doc := &r.doc
	groups := map[string]*Group{}
	for name, v := range doc.fields(config) {
		var desc, ranks string
		for key, v := range doc.fields(v) {
			switch string(doc.bytes(key)) {
			case "desc":
				desc = doc.text(v)
			case "ranks":
				ranks = doc.text(v)
			}
		}
		if doc.work += len(ranks); doc.work > maxWork { // a pickle can name one text many times
			break
		}
		groups[string(doc.bytes(name))] = r.group(doc.text(name), desc, ranks)
	}
	return groups
}

// group returns the group of that name and these members, "[0, 1]".
func (r *Reader) group(name, desc, ranks string) *Group {
	key := name + "\x00" + desc + "\x00" + ranks
	g := r.groups[key]
	if g == nil {
		g = &Group{Name: text.Line(name, maxName), Desc: text.Line(desc, maxName), Ranks: parseRanks(ranks)}
		r.groups[key] = g
	}
	return g
}

// parseRanks returns nil for what is not a list of different ranks.
func parseRanks(s string) (ranks []int) {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if s == "" || strings.Count(s, ",") >= maxMembers {
		return nil
	}
	seen := map[int]bool{}
	for part := range strings.SplitSeq(s, ",") {
		rank, err := strconv.ParseUint(strings.TrimSpace(part), 10, 31)
		if err != nil || seen[int(rank)] {
			return nil
		}
		seen[int(rank)] = true
		ranks = append(ranks, int(rank))
	}
	return ranks
}

// A raw is an entry whose parts are not read yet.
type raw struct {
	record, collective, p2p    int64
	retired                    bool
	name, group, frames, state value
	tensors                    [4]value // input sizes and types, output sizes and types
}

// entry reads one entry and returns its number in the recorder.
func (r *Reader) entry(e *Entry, item value, groups map[string]*Group, last bool) (record int64) {
	doc := &r.doc
	var in raw
	items := doc.items(item, kindDict)
	for i := 0; i+1 < len(items); i += 2 {
		in.set(e, doc.bytes(items[i]), items[i+1])
	}
	if e.Seq = in.collective; e.P2P {
		e.Seq = in.p2p
	}
	switch string(doc.bytes(in.state)) {
	case "started":
		e.State = Started
	case "completed":
		e.State = Completed
	default:
		// gloo's recorder never says that an operation has completed. NCCL's retires those, too, that
		// have run out of time.
		if library, _, _ := bytes.Cut(doc.bytes(in.name), []byte(":")); in.retired && !bytes.HasSuffix(bytes.TrimSuffix(library, []byte("x")), []byte("ccl")) {
			e.State = Completed
		}
	}
	if pair := doc.items(in.group, kindList); len(pair) == 2 {
		if e.Group = groups[string(doc.bytes(pair[0]))]; e.Group == nil {
			e.Group = r.group(doc.text(pair[0]), doc.text(pair[1]), "")
		}
	} else {
		e.Group = r.group("", "", "")
	}
	e.Op = r.op(in.name, &in.tensors)
	if last || e.State != Completed {
		e.Place = r.place(in.frames)
	}
	return in.record
}

func (in *raw) set(e *Entry, key []byte, v value) {
	switch string(key) {
	case "record_id":
		in.record = v.n
	case "process_group":
		in.group = v
	case "collective_seq_id":
		in.collective = v.n
	case "p2p_seq_id":
		in.p2p = v.n
	case "is_p2p":
		e.P2P = v.n != 0
	case "profiling_name":
		in.name = v
	case "time_created_ns":
		e.Created = v.n
	case "time_discovered_completed_ns":
		e.Completed = v.n
	case "input_sizes":
		in.tensors[0] = v
	case "input_dtypes":
		in.tensors[1] = v
	case "output_sizes":
		in.tensors[2] = v
	case "output_dtypes":
		in.tensors[3] = v
	case "state":
		in.state = v
	case "retired":
		in.retired = v.n != 0
	case "frames":
		in.frames = v
	}
}

// op returns the one Op of that name with these tensors.
func (r *Reader) op(name value, tensors *[4]value) *Op {
	doc := &r.doc
	key := append(r.key[:0], doc.bytes(name)...)
	for i := range tensors {
		items := doc.items(tensors[i], kindList)
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
		op = newOp(doc.text(name))
		op.In, op.Out = doc.tensors(tensors[0], tensors[1]), doc.tensors(tensors[2], tensors[3])
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
	name = text.Line(name[strings.LastIndexByte(name, ':')+1:], maxName)
	name, peers, _ := strings.Cut(name, " ")
	op := &Op{Name: cmp.Or(calls[name], name, "an operation without a name"), From: -1, To: -1}
	rank := func(s string) int {
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return -1
		}
		return int(n)
	}
	if from, to, ok := strings.Cut(peers, "->"); ok && rank(from) >= 0 {
		op.From, op.To = rank(from), rank(to)
	} else if to, from, ok := strings.Cut(peers, "<-"); ok {
		op.From, op.To = rank(from), rank(to)
	}
	return op
}

func (d *document) tensors(sizes, types value) (t Tensors) {
	for _, size := range d.items(sizes, kindList) {
		elements := int64(1)
		for _, dim := range d.items(size, kindList) {
			if hi, lo := bits.Mul64(uint64(elements), uint64(max(0, dim.n))); hi != 0 || lo > math.MaxInt64 {
				elements = math.MaxInt64
			} else {
				elements = int64(lo)
			}
		}
		if t.Elements += elements; t.Elements < 0 {
			t.Elements = math.MaxInt64
		}
	}
	var names []string
	for _, v := range d.items(types, kindList) {
		if name := d.text(v); !slices.Contains(names, name) && len(names) < 4 {
			names = append(names, name)
		}
	}
	t.Type = strings.Join(names, ", ")
	return t
}

// place returns the innermost frame of the user's program: "train.py:88 in load_batch".
func (r *Reader) place(frames value) string {
	doc := &r.doc
	for _, frame := range doc.items(frames, kindList) {
		var file, name string
		var line int64
		for key, v := range doc.fields(frame) {
			switch string(doc.bytes(key)) {
			case "filename":
				file = doc.text(v)
			case "name":
				name = doc.text(v)
			case "line":
				line = v.n
			}
		}
		if file != "" && !strings.Contains(file, "-packages/") && !strings.Contains(file, "/torch/distributed/") {
			return text.Line(fmt.Sprintf("%s:%d in %s", path.Base(file), line, name), maxName)
		}
	}
	return ""
}
