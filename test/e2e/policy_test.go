//go:build linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// policyFile writes a restart policy.
func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Two hosts over a real rendezvous: the one that does not hold it is drained, the other
// continues without it and counts no restart.
func TestPolicyDrains(t *testing.T) {
	t.Parallel()
	policy := policyFile(t, "max_restarts: 3\nrules:\n- {name: bad-gpu, match: {exit: 66, stderr: '^ECC'}, action: drain}\n")
	port := freePort(t)
	flags := func(isHost bool) string {
		return fmt.Sprintf("--nnodes 1:2 --rdzv-backend c10d --rdzv-id job1 --rdzv-endpoint 127.0.0.1:%d --rdzv-conf is_host=%v,last_call_timeout=2 --restart-policy %s",
			port, isHost, policy)
	}
	stays := workers(t, muster(t), setup{}, flags(true), "report:$GROUP_WORLD_SIZE hosts, restart $TORCHELASTIC_RESTART_COUNT", "gate", "exit:0")
	drained := workers(t, muster(t), setup{}, flags(false), "report:hello", "gate", "error:ECC error\\n", "exit:66")
	stays.await("2 hosts, restart 0")
	drained.await("hello")
	stays.board.forget() // a round of one, if the other was late
	drained.gate.Open()
	drained.want(69).says("drained by rule bad-gpu of "+policy+":3", "exitcode  : 66").noneLeft(0)
	stays.await("1 hosts, restart 0")
	stays.gate.Open()
	stays.want(0).says("no restart is counted").saysNot("restart=1/3")
}

// A budget that is used up ends the job on all hosts, whose reports say so.
func TestPolicyBudget(t *testing.T) {
	t.Parallel()
	policy := policyFile(t, "max_restarts: 3\nrules:\n- {name: three, match: {exit: 3}, action: retry, budget: {restarts: 1, window: 1h}, backoff: {initial: 100ms}}\n")
	agents := hosts(t, 2, "--restart-policy "+policy, func(int) string { return "" }, "r1:exit:3", "hang")
	for _, j := range agents {
		j.want(1).noneLeft(0).says("waiting before the next round, as a policy rule requires",
			fmt.Sprintf("muster: stopped by rule three of %s:3: its budget of 1 restart in 1h is used up", policy))
	}
}
