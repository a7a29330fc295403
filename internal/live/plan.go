package live

import "slices"

// A Part is what one agent says of its workers in a round.
type Part struct {
	// Members were members until now, or are ready to be.
	Members []Member `json:"members"`
	// Kept is how many of them have had the members' state.
	Kept int `json:"kept"`
	// Starting is how many more are starting, and not ready yet.
	Starting int `json:"starting"`
}

type Member struct {
	LocalRank int    `json:"local_rank"`
	Handle    string `json:"handle"`
	Step      int64  `json:"step"` // how many it has completed; -1: its state lies between two
	New       bool   `json:"new"`  // it never had the members' state
}

// A Plan is the membership of a round. Ranks go by group rank, then local rank.
type Plan struct {
	// Form says that there is none yet: nobody has the members' state, and the workers that are
	// starting are waited for.
	Form bool `json:"form,omitempty"`
	// Torn says that there cannot be one: the states of all members lie between two steps.
	Torn    bool     `json:"torn,omitempty"`
	Handles []string `json:"handles,omitempty"`
	Steps   []int64  `json:"steps,omitempty"`
	// Source is the rank whose state the others take; -1: all have the same.
	Source int   `json:"source"`
	Joined []int `json:"joined"` // ranks
	// Locals are the local ranks of the members of each node.
	Locals [][]int `json:"locals,omitempty"`
}

// Agree makes the membership of a round from what its agents say, in order of group rank. If
// nobody has the members' state yet, all take that of the first who is furthest, as DDP's do.
func Agree(parts []Part) *Plan {
	p := &Plan{Source: -1, Joined: []int{}, Locals: make([][]int, len(parts))}
	kept := 0
	for _, part := range parts {
		kept += part.Kept
	}
	starting := slices.ContainsFunc(parts, func(part Part) bool { return part.Starting > 0 })
	if kept == 0 && starting {
		return &Plan{Form: true, Source: -1}
	}
	differ := false
	for i, part := range parts {
		for _, m := range part.Members {
			rank := len(p.Handles)
			p.Handles, p.Steps = append(p.Handles, m.Handle), append(p.Steps, m.Step)
			p.Locals[i] = append(p.Locals[i], m.LocalRank)
			if m.New {
				p.Joined = append(p.Joined, rank)
			}
			differ = differ || m.Step != p.Steps[0]
			if (kept == 0 || !m.New) && m.Step >= 0 && (p.Source < 0 || m.Step > p.Steps[p.Source]) {
				p.Source = rank
			}
		}
	}
	switch {
	case kept > 0 && p.Source < 0:
		return &Plan{Torn: true, Source: -1}
	case !differ && len(p.Joined) == 0:
		p.Source = -1
	}
	return p
}

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
