package launch

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// mostSilent is how long a drill may cut a host off.
const mostSilent = 10 * time.Minute

// Drill returns what makes this host's part of the job fail (health.Control).
func (c *control) Drill(what, by string, length time.Duration) (fail func(), err error) {
	switch what {
	case "kill-agent":
		fail = func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			os.Exit(128 + int(syscall.SIGKILL)) // PID 1 of a container cannot kill itself
		}
	case "stop-agent":
		fail = func() { c.Stop(by, false)() }
	case "cut-host":
		switch {
		case length <= 0 || length > mostSilent:
			return nil, fmt.Errorf("a host is cut off for more than 0s and at most %v, not %v", mostSilent, length)
		case os.Getpid() == 1:
			return nil, errors.New("this agent is PID 1 of a container, which cannot be stopped from within; start it under an init (docker run --init, shareProcessNamespace)")
		}
		fail = func() { c.fallSilent(length) }
	default:
		return nil, fmt.Errorf("this agent knows no drill %q; it knows kill-agent, stop-agent and cut-host", what)
	}
	c.log.Warn("muster chaos: this agent is about to fail, since a drill asks for it", "drill", what, "by", by)
	return fail, nil
}

// fallSilent stops the workers and this process, as a host that is cut off says nothing any more,
// and has them continue after a time.
func (c *control) fallSilent(length time.Duration) {
	until := time.Now().Add(length)
	forget, err := continueAfter(length) // before anything stops
	if err != nil {
		c.log.Warn("muster chaos: cannot cut this host off", "error", err)
		return
	}
	defer forget()
	_, _ = c.Signal(syscall.SIGSTOP, -1) // an error: there are no workers
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(time.Until(until)) // the other threads may run for a moment yet
	_, _ = c.Signal(syscall.SIGCONT, -1)
}
