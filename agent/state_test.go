package agent

import "testing"

// Source: SimpleElasticAgent._invoke_run.
func TestNext(t *testing.T) {
	tests := []struct {
		name  string
		ev    event
		left  int
		state State
		act   action
	}{
		{"started", evStarted, 0, Healthy, actWatch},
		{"succeeded", evSucceeded, 0, Succeeded, actFinish},
		{"succeeded with restarts left", evSucceeded, 3, Succeeded, actFinish},
		{"failed, none left", evFailed, 0, Failed, actFail},
		{"failed, one left", evFailed, 1, Stopped, actRestart},
		{"nodes wait, none left", evNodesWaiting, 0, Stopped, actRejoin},
		{"nodes wait, one left", evNodesWaiting, 1, Stopped, actRejoin},
		{"wedged worker disables restarts", evUnhealthy, 5, Unhealthy, actFail},
		{"signal", evSignal, 5, Failed, actStop},
		{"cannot start is not retried", evStartFailed, 5, Failed, actFail},
		{"no such event", event(99), 5, Unknown, actFail},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, act := next(tt.ev, tt.left)
			if state != tt.state || act != tt.act {
				t.Errorf("next(%d, %d) = %s, %d, want %s, %d", tt.ev, tt.left, state, act, tt.state, tt.act)
			}
		})
	}
}
