package doctor

import (
	"time"

	"github.com/muster-run/muster/internal/host/devices"
)

// What tests of the decisions need of the inside.
type (
	HostInfo = hostInfo
	Place    = place
	Finding  = finding
	Result   = result
)

var (
	Judge        = judge
	JudgeXids    = judgeXids
	ParseRequest = parseRequest
	Matching     = matching
	Targets      = targets
)

// SMI is what is said of the answer of nvidia-smi to all that it is asked.
func SMI(out []byte) []Line {
	if list := devices.ParseSMI(out, fields); len(list) > 0 {
		return judgeGPUs(list)
	}
	return nil
}

// ServeListener serves a listener whose clock is ahead, until close is called.
func ServeListener(token string, ahead time.Duration) (port int, close func(), err error) {
	s := Real()
	s.Now = func() time.Time { return time.Now().Add(ahead) }
	l, err := listen(token, s)
	if err != nil {
		return 0, nil, err
	}
	return l.port(), l.stop, nil
}
