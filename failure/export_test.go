package failure

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

// A ShapeRow is a row of the table.
type ShapeRow struct {
	Name, Line string
	Match      func(line string) bool
}

func ShapeRows() (rows []ShapeRow) {
	for i := range shapes {
		match := func(line string) bool {
			for _, p := range patterns[shapes[i].role] {
				if p.shape == &shapes[i] && p.match(line, nil) {
					return true
				}
			}
			return false
		}
		rows = append(rows, ShapeRow{shapes[i].name, shapes[i].line, match})
	}
	return rows
}
