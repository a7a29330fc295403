package agent

import "testing"

// Source: SimpleElasticAgent._invoke_run; for several hosts, docs/decisions.md.
func TestNext(t *testing.T) {
	tests := []struct {
		name  string
		ev    event
		ph    phase
		left  int
		state State
		act   action
	}{
		{"ranks are known", evAssigned, assigning, 0, Init, actStart},
		{"ranks are not known", evAssignFailed, assigning, 5, Failed, actAbort},
		{"started", evStarted, running, 0, Healthy, actWatch},
		{"succeeded", evSucceeded, running, 0, Succeeded, actBarrier},
		{"succeeded with restarts left", evSucceeded, running, 3, Succeeded, actBarrier},
		{"failing, none left", evFailing, running, 0, Failed, actAnnounce},
		{"failing, one left", evFailing, running, 1, Failed, actAnnounce},
		{"nodes wait, after the others were told", evNodesWaiting, failing, 1, Failed, actWatch},
		{"node gone, after the others were told", evNodeGone, failing, 1, Failed, actWatch},
		{"evicted, after the others were told", evEvicted, failing, 0, Failed, actWatch},
		{"closed, after the others were told", evClosed, failing, 0, Failed, actWatch},
		{"peer gave up, after the others were told", evPeerGaveUp, failing, 1, Failed, actWatch},
		{"disconnected, after the others were told", evDisconnected, failing, 1, Failed, actAbort},
		{"signal, after the others were told", evSignal, failing, 1, Failed, actStop},
		{"failed, after the others were told", evFailed, failing, 1, Stopped, actRestart},
		{"failed for good, after the others were told", evFailed, failing, 0, Failed, actFail},
		{"failed, none left", evFailed, running, 0, Failed, actFail},
		{"failed, one left", evFailed, running, 1, Stopped, actRestart},
		{"failed, more used than allowed here", evFailed, running, -1, Failed, actFail},
		{"lost peers, none left", evLostPeers, running, 0, Failed, actListen},
		{"lost peers, one left", evLostPeers, running, 1, Failed, actListen},
		{"lost peers, no news, none left", evNoNews, listening, 0, Failed, actFail},
		{"lost peers, no news, one left", evNoNews, listening, 1, Stopped, actRestart},
		{"wedged worker disables restarts", evUnhealthy, running, 5, Unhealthy, actFail},
		{"cannot start is not retried", evStartFailed, running, 5, Failed, actFail},

		{"signal", evSignal, running, 5, Failed, actStop},
		{"signal before the workers run", evSignal, assigning, 5, Failed, actStop},
		{"signal at the exit barrier", evSignal, finished, 5, Failed, actStop},
		{"signal after workers lost peers", evSignal, listening, 5, Failed, actStop},

		{"preempted elsewhere", evPeerPreempted, running, 5, Failed, actPreempt},
		{"preempted elsewhere, at the exit barrier", evPeerPreempted, finished, 5, Failed, actPreempt},
		{"preempted elsewhere, after the others were told", evPeerPreempted, failing, 5, Failed, actPreempt},

		{"nodes wait, none left", evNodesWaiting, running, 0, Stopped, actRejoin},
		{"nodes wait, one left", evNodesWaiting, running, 1, Stopped, actRejoin},
		{"nodes wait while ranks are exchanged", evNodesWaiting, assigning, 0, Stopped, actRejoin},
		{"nodes wait at the exit barrier", evNodesWaiting, finished, 0, Stopped, actRejoin},
		{"nodes wait after workers lost peers", evNodesWaiting, listening, 0, Stopped, actRejoin},
		{"node gone, none left", evNodeGone, running, 0, Stopped, actRejoin},
		{"node gone while ranks are exchanged", evNodeGone, assigning, 0, Stopped, actRejoin},
		{"node gone at the exit barrier", evNodeGone, finished, 0, Stopped, actRejoin},
		{"node gone after workers lost peers", evNodeGone, listening, 0, Stopped, actRejoin},
		{"new workers are wanted", evAsked, running, 0, Stopped, actRejoin},
		{"new workers are wanted, after the others were told of a failure", evAsked, failing, 0, Failed, actWatch},
		{"evicted", evEvicted, running, 0, Stopped, actRejoin},
		{"evicted at the exit barrier", evEvicted, finished, 0, Stopped, actRejoin},
		{"done node gone", evDoneNodeGone, running, 0, Healthy, actWatch},
		{"done node gone at the exit barrier", evDoneNodeGone, finished, 0, Succeeded, actWatch},
		{"done node gone after workers lost peers", evDoneNodeGone, listening, 0, Failed, actWatch},

		{"peer restarts, none left here", evPeerRestarts, running, 0, Stopped, actFollow},
		{"peer restarts at the exit barrier", evPeerRestarts, finished, 1, Stopped, actFollow},
		{"peer restarts after workers lost peers", evPeerRestarts, listening, 0, Stopped, actFollow},
		{"peer gave up, some left here", evPeerGaveUp, running, 5, Failed, actFail},
		{"peer gave up at the exit barrier", evPeerGaveUp, finished, 0, Failed, actFail},
		{"peer gave up after workers lost peers", evPeerGaveUp, listening, 5, Failed, actFail},

		{"peer lost a host for good", evPeerLostHost, running, 5, Failed, actGiveUp},
		{"peer lost a host, after the others were told", evPeerLostHost, failing, 5, Failed, actWatch},

		{"closed", evClosed, running, 5, Failed, actEnded},
		{"closed while ranks are exchanged", evClosed, assigning, 5, Failed, actEnded},
		{"closed at the exit barrier", evClosed, finished, 0, Succeeded, actFinish},
		{"closed after workers lost peers", evClosed, listening, 5, Failed, actEnded},
		{"closed by a done node", evClosedWhenDone, running, 0, Healthy, actWatch},
		{"closed by a done node at the exit barrier", evClosedWhenDone, finished, 0, Succeeded, actFinish},
		{"disconnected", evDisconnected, running, 5, Failed, actAbort},
		{"disconnected while ranks are exchanged", evDisconnected, assigning, 5, Failed, actAbort},
		{"disconnected at the exit barrier", evDisconnected, finished, 0, Succeeded, actFinish},
		{"disconnected after workers lost peers", evDisconnected, listening, 5, Failed, actAbort},

		{"barrier passed", evBarrierPassed, finished, 0, Succeeded, actFinish},
		{"barrier timed out, and others need this host", evBarrierOverdue, finished, 0, Succeeded, actWatch},
		{"barrier timed out", evBarrierTimedOut, finished, 0, Succeeded, actFinish},
		{"barrier broken", evBarrierBroken, finished, 0, Succeeded, actFinish},

		{"no event", 0, running, 5, Unknown, actFail},
		{"no such event", event(99), running, 5, Unknown, actFail},
		{"no such event at the exit barrier", event(99), finished, 5, Unknown, actFail},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, act := next(tt.ev, tt.ph, tt.left, "")
			if state != tt.state || act != tt.act {
				t.Errorf("next(%d, %d, %d) = %s, %d, want %s, %d", tt.ev, tt.ph, tt.left, state, act, tt.state, tt.act)
			}
		})
	}
}
