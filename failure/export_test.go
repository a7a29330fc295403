package failure

import (
	"slices"
	"strings"
)

// What tests look at from inside.
type (
	ErrorFile = errorFile
	Traceback = account
)

const (
	MaxErrorFile = maxErrorFile
	Failed       = failed
	LostPeer     = lostPeer
	Stopped      = stopped
	Python       = python
	Faulthandler = faulthandler
	Native       = native
	GoPanic      = goPanic
)

var (
	Lift          = lift
	ReadErrorFile = readErrorFile
	ExplainStart  = explainStart
)

// A ShapeRow is a shape of the table.
type ShapeRow struct {
	Name, Line string // the first spelling
	spellings  []*pattern
}

func (row *ShapeRow) Match(line string) bool {
	return slices.ContainsFunc(row.spellings, func(p *pattern) bool { return p.match(line, nil) })
}

func ShapeRows() (rows []*ShapeRow) {
	by := map[*shape]*ShapeRow{}
	for _, all := range patterns {
		for _, p := range all {
			if by[p.shape] == nil {
				by[p.shape] = &ShapeRow{Name: p.name, Line: strings.Join(p.parts, "*")}
				rows = append(rows, by[p.shape])
			}
			by[p.shape].spellings = append(by[p.shape].spellings, p)
		}
	}
	return rows
}

// Roles are those that the code asks for.
var Roles = []role{begins, goesOn, aside, within, library, between, other, network, lost, above, orphaned, vague, leaving,
	crash, reason, logged, open, detail, asserted, raised, farewell, work, advice, meaning, ended}

func HasShapes(r role) bool { return len(patterns[r]) > 0 }
