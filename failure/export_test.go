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
