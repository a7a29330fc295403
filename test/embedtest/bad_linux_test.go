package embedtest

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// Documented panics, by case.
var mustNotBe = map[string]string{
	"metrics: event of no job": "agent.Event.Job is never nil",
}

// Whatever a program gives to the packages ends in an error or a result: no panic, no hang.
func TestBadInput(t *testing.T) {
	list, err := command(t, "bad").Output()
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(strings.TrimSpace(string(list)), "\n")
	if len(cases) < 295 {
		t.Errorf("only %d cases", len(cases))
	}
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := command(t, "bad", name)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			cmd.WaitDelay = time.Second
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stuck := time.AfterFunc(2*time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
			defer stuck.Stop()
			panicked := cmd.Wait() != nil || !strings.Contains(out.String(), "ended: ")
			if panicked != (mustNotBe[name] != "") {
				t.Errorf("panicked or hung: %v, documented: %q\n%s", panicked, mustNotBe[name], out.String())
			}
		})
	}
}
