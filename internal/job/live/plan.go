package live

import (
	"fmt"
	"slices"
)

// A Part is what one agent says of its workers in a round.
type Part struct {
	// Members were members until now, or are ready to be.
	Members []Member `json:"members"`
	// Starting is how many more are starting, and not ready yet.
	Starting int `json:"starting"`
	// Size is the workers' replica_size, if there are any; -1: they have several.
	Size int `json:"replica_size,omitempty"`
}

type Member struct {
	LocalRank int    `json:"local_rank"`
	Handle    string `json:"handle"`
	Step      int64  `json:"step"` // how many it has completed; -1: its state lies between two
	// Lineage is the UUID of the membership that has completed its last step; 0: it never had the
	// members' state, or does not know. Next is that of one in which it can complete one more step,
	// since all communication for that is done; 0: it cannot.
	Lineage int64 `json:"lineage"`
	Next    int64 `json:"next,omitempty"`
	// Place is which shard it has, and Replica the group in which it was; both from 1; 0: none.
	// Groups are numbered anew in each membership; Of is the UUID of the one that is meant.
	Place   int   `json:"place,omitempty"`
	Replica int   `json:"replica,omitempty"`
	Of      int64 `json:"of,omitempty"`
}

// A Plan is the membership of a round. Ranks go by group rank, then local rank.
type Plan struct {
	// UUID is no other membership's: holders of the rendezvous that follow each other may count
	// rounds from the same number.
	UUID int64 `json:"uuid"`
	// Form says that there is none yet: nobody has the members' state, and the workers that are
	// starting are waited for.
	Form bool `json:"form,omitempty"`
	// Inconsistent says that there cannot be one, for the reason in Why: the states of all members lie
	// between two steps, for example.
	Inconsistent bool     `json:"torn,omitempty"`
	Why          string   `json:"why,omitempty"`
	Handles      []string `json:"handles,omitempty"`
	Steps        []int64  `json:"steps,omitempty"`
	// Source is the rank whose state the others take; -1: all have the same. Lineage is that of the
	// state; 0: nobody had the members' yet, and theirs begins.
	Source  int   `json:"source"`
	Lineage int64 `json:"lineage,omitempty"`
	Joined  []int `json:"joined"` // ranks whose state is of another lineage
	// Locals are the local ranks of the members of each node.
	Locals [][]int `json:"locals,omitempty"`
	// Groups are the ranks of each replica group, by place, if it has several.
	Groups [][]int `json:"groups,omitempty"`
	// Lacks is how many more workers it takes to make one more group.
	Lacks int `json:"lacks"`
}

// A point is a state of the members: that of a lineage after so many steps; none if that is -1. Equal
// steps of two memberships are not the same state: some may have completed one that the others have
// repeated without them.
type point struct{ lineage, step int64 }

// after reports whether a point is of a later lineage, or of a later step of the same.
func (p point) after(q point) bool {
	return p.lineage > q.lineage || p.lineage == q.lineage && p.step > q.step
}

func (m *Member) at() point { return point{m.Lineage, m.Step} }

// Agree makes the membership of a round from what its agents say, in order of group rank. All take
// the state of the newest lineage. If nobody has the members' state yet, all take that of the first
// who is furthest, as DDP's do.
func Agree(parts []Part) *Plan {
	p := &Plan{Source: -1, Joined: []int{}, Locals: make([][]int, len(parts))}
	members, kept, starting, size := together(parts)
	if !kept && starting > 0 {
		return &Plan{Form: true, Source: -1}
	}
	cannot := func(why string) *Plan { return &Plan{Inconsistent: true, Why: why, Source: -1} }
	if size < 0 {
		return cannot("workers have passed different values of replica_size to muster.live.join, " +
			"which must be equal on all ranks")
	}
	size = max(size, 1)
	groups, lacks := replicaGroups(size, members)
	if len(groups) == 0 && len(members) > 0 {
		return cannot(fmt.Sprintf("the %d workers that are left do not make a replica group of %d, each with another shard",
			len(members), size))
	}
	from := common(size, members, groups, kept)
	if from.step < 0 {
		from = completed(members, groups)
	}
	if from.step < 0 && len(members) > 0 {
		return cannot("no worker that is left has the state after a whole step, or none has some shard of it")
	}
	taken, ranks, differ := map[int]bool{}, map[int]int{}, false // by index of members
	for _, i := range slices.Concat(groups...) {
		taken[i] = true
	}
	for i, m := range members {
		if !taken[i] {
			continue
		}
		ranks[i] = len(p.Handles)
		p.Handles, p.Steps = append(p.Handles, m.Handle), append(p.Steps, m.Step)
		p.Locals[m.node] = append(p.Locals[m.node], m.LocalRank)
		if m.Lineage == 0 || m.Lineage != from.lineage {
			p.Joined = append(p.Joined, ranks[i])
		}
		if p.Source < 0 && m.at() == from {
			p.Source = ranks[i]
		}
		differ = differ || m.Step != p.Steps[0]
	}
	if !differ && len(p.Joined) == 0 {
		p.Source = -1
	}
	p.Lineage, p.Lacks = from.lineage, lacks
	if size > 1 {
		for _, group := range groups {
			for place, i := range group {
				group[place] = ranks[i]
			}
		}
		p.Groups = groups
	}
	return p
}

// together are the members of all parts, whether one has the members' state, or lies between two,
// how many more are starting, and their replica_size; 0 if there is none, -1 if they have several.
func together(parts []Part) (members []seat, kept bool, starting, size int) {
	for i, part := range parts {
		starting += max(part.Starting, 0)
		for _, m := range part.Members {
			members = append(members, seat{i, m})
			kept = kept || m.Lineage > 0
		}
		switch {
		case size == 0:
			size = part.Size
		case part.Size != 0 && part.Size != size:
			size = -1
		}
	}
	return members, kept, starting, size
}

// seat is the replica group of a rank, and its place there, both from 1.
func (p *Plan) seat(rank int) (replica, place int) {
	for i, group := range p.Groups {
		if at := slices.Index(group, rank); at >= 0 {
			return i + 1, at + 1
		}
	}
	return 0, 0
}

// UUID returns one for a round. Those of later rounds are higher.
func UUID(round int, random uint32) int64 { return int64(round+1)<<32 | int64(random) }

// First is the rank of a node's first member.
func (p *Plan) First(node int) int {
	n := 0
	for _, locals := range p.Locals[:node] {
		n += len(locals)
	}
	return n
}

// Leader is the first node that has a member; -1 if there is none.
func (p *Plan) Leader() int {
	return slices.IndexFunc(p.Locals, func(locals []int) bool { return len(locals) > 0 })
}
