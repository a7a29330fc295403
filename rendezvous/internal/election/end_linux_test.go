package election_test

import "testing"

// A member ends without a panic while it answers requests.
func TestMemberEndsBesideRequests(t *testing.T) {
	t.Parallel()
	for range 10 {
		l := newLab(t, 1, "")
		l.client().ask("status")
		m := l.members[0]
		if err := m.in.Close(); err != nil { // which tells it to end
			t.Fatal(err)
		}
		wait(t, m.over, "the member's end")
		if code := m.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("exit status %d", code)
		}
	}
}
