package decide

import (
	"strconv"
	"strings"
	"testing"
)

// know returns the facts that words say are true. A number is how many restarts are left.
func know(t *testing.T, words string) (f Facts) {
	named := map[string]*bool{"alone": &f.Alone, "follows": &f.Follows, "silent": &f.Silent, "unsettled": &f.Unsettled,
		"live": &f.Live, "formed": &f.Formed, "pending": &f.Pending, "left": &f.Left, "member": &f.Member, "all": &f.All,
		"over": &f.Over, "joins": &f.Joins, "holder": &f.Holder, "awaited": &f.Awaited, "drained": &f.Drained}
	for word := range strings.FieldsSeq(words) {
		if n, err := strconv.Atoi(word); err == nil {
			f.RestartsLeft = n
		} else if fact := named[word]; fact != nil {
			*fact = true
		} else if verdict := Verdict(word); verdict == Retry || verdict == Stop || verdict == Drain {
			f.Verdict = verdict
		} else {
			t.Fatalf("no fact %q", word)
		}
	}
	return f
}

// Source: SimpleElasticAgent._invoke_run; for several hosts, docs/decisions.md.
func TestNext(t *testing.T) {
	tests := []struct {
		name  string
		ev    Event
		ph    Phase
		know  string
		state State
		act   Action
	}{
		{"ranks are known", EvAssigned, Assigning, "", Init, ActStart},
		{"ranks are not known", EvAssignFailed, Assigning, "5", Failed, ActAbort},
		{"started", EvStarted, Running, "", Healthy, ActWatch},
		{"succeeded", EvSucceeded, Running, "", Succeeded, ActBarrier},
		{"succeeded with restarts left", EvSucceeded, Running, "3", Succeeded, ActBarrier},
		{"failing, none left", EvFailing, Running, "", Failed, ActAnnounceFinal},
		{"failing, one left", EvFailing, Running, "1", Failed, ActAnnounce},
		{"nodes wait, after the others were told", EvNodesWaiting, Failing, "1", Failed, ActWatch},
		{"node gone, after the others were told", EvNodeGone, Failing, "1", Failed, ActWatch},
		{"evicted, after the others were told", EvEvicted, Failing, "", Failed, ActWatch},
		{"closed, after the others were told", EvClosed, Failing, "", Failed, ActWatch},
		{"peer gave up, after the others were told", EvPeerGaveUp, Failing, "1", Failed, ActWatch},
		{"disconnected, after the others were told", EvDisconnected, Failing, "1", Failed, ActAbort},
		{"signal, after the others were told", EvSignal, Failing, "1", Failed, ActStop},
		{"failed, after the others were told", EvFailed, Failing, "1", Stopped, ActRestart},
		{"failed for good, after the others were told", EvFailed, Failing, "", Failed, ActFail},
		{"failed, none left", EvFailed, Running, "", Failed, ActFail},
		{"failed, one left", EvFailed, Running, "1", Stopped, ActRestart},
		{"failed, more used than allowed here", EvFailed, Running, "-1", Failed, ActFail},
		{"lost peers, none left", EvLostPeers, Running, "", Failed, ActListen},
		{"lost peers, one left", EvLostPeers, Running, "1", Failed, ActListen},
		{"lost peers, no news, none left", EvNoNews, Listening, "", Failed, ActFail},
		{"lost peers, no news, one left", EvNoNews, Listening, "1", Stopped, ActRestart},
		{"wedged worker disables restarts", EvUnhealthy, Running, "5", Unhealthy, ActFail},
		{"cannot start is not retried", EvStartFailed, Running, "5", Failed, ActFail},

		{"signal", EvSignal, Running, "5", Failed, ActStop},
		{"signal before the workers run", EvSignal, Assigning, "5", Failed, ActStop},
		{"signal at the exit barrier", EvSignal, Finished, "5", Failed, ActStop},
		{"signal after workers lost peers", EvSignal, Listening, "5", Failed, ActStop},

		{"preempted elsewhere", EvPeerPreempted, Running, "5", Failed, ActPreempt},
		{"preempted elsewhere, at the exit barrier", EvPeerPreempted, Finished, "5", Failed, ActPreempt},
		{"preempted elsewhere, after the others were told", EvPeerPreempted, Failing, "5", Failed, ActPreempt},

		{"nodes wait, none left", EvNodesWaiting, Running, "", Stopped, ActRejoin},
		{"nodes wait, one left", EvNodesWaiting, Running, "1", Stopped, ActRejoin},
		{"nodes wait while ranks are exchanged", EvNodesWaiting, Assigning, "", Stopped, ActRejoin},
		{"nodes wait at the exit barrier", EvNodesWaiting, Finished, "", Stopped, ActRejoin},
		{"nodes wait after workers lost peers", EvNodesWaiting, Listening, "", Stopped, ActRejoin},
		{"node gone, none left", EvNodeGone, Running, "", Stopped, ActRejoin},
		{"node gone while ranks are exchanged", EvNodeGone, Assigning, "", Stopped, ActRejoin},
		{"node gone at the exit barrier", EvNodeGone, Finished, "", Stopped, ActRejoin},
		{"node gone after workers lost peers", EvNodeGone, Listening, "", Stopped, ActRejoin},
		{"new workers are wanted", EvAsked, Running, "", Stopped, ActRejoin},
		{"new workers are wanted, after the others were told of a failure", EvAsked, Failing, "", Failed, ActWatch},
		{"evicted", EvEvicted, Running, "", Stopped, ActRejoin},
		{"evicted at the exit barrier", EvEvicted, Finished, "", Stopped, ActRejoin},
		{"done node gone", EvDoneNodeGone, Running, "", Healthy, ActWatch},
		{"done node gone at the exit barrier", EvDoneNodeGone, Finished, "", Succeeded, ActWatch},
		{"done node gone after workers lost peers", EvDoneNodeGone, Listening, "", Failed, ActWatch},

		{"peer restarts, none left here", EvPeerRestarts, Running, "", Stopped, ActFollow},
		{"peer restarts at the exit barrier", EvPeerRestarts, Finished, "1", Stopped, ActFollow},
		{"peer restarts after workers lost peers", EvPeerRestarts, Listening, "", Stopped, ActFollow},
		{"peer gave up, some left here", EvPeerGaveUp, Running, "5", Failed, ActFail},
		{"peer gave up at the exit barrier", EvPeerGaveUp, Finished, "", Failed, ActFail},
		{"peer gave up after workers lost peers", EvPeerGaveUp, Listening, "5", Failed, ActFail},

		{"peer lost a host for good", EvPeerLostHost, Running, "5", Failed, ActGiveUp},
		{"peer lost a host, after the others were told", EvPeerLostHost, Failing, "5", Failed, ActWatch},

		{"closed", EvClosed, Running, "5", Failed, ActEnded},
		{"closed while ranks are exchanged", EvClosed, Assigning, "5", Failed, ActEnded},
		{"closed at the exit barrier", EvClosed, Finished, "", Succeeded, ActFinish},
		{"closed after workers lost peers", EvClosed, Listening, "5", Failed, ActEnded},
		{"closed by a done node", EvClosedWhenDone, Running, "", Healthy, ActWatch},
		{"closed by a done node at the exit barrier", EvClosedWhenDone, Finished, "", Succeeded, ActFinish},
		{"disconnected", EvDisconnected, Running, "5", Failed, ActAbort},
		{"disconnected while ranks are exchanged", EvDisconnected, Assigning, "5", Failed, ActAbort},
		{"disconnected at the exit barrier", EvDisconnected, Finished, "", Succeeded, ActFinish},
		{"disconnected after workers lost peers", EvDisconnected, Listening, "5", Failed, ActAbort},

		{"barrier passed", EvBarrierPassed, Finished, "", Succeeded, ActFinish},
		{"barrier timed out, and others need this host", EvBarrierOverdue, Finished, "", Succeeded, ActWatch},
		{"barrier timed out", EvBarrierTimedOut, Finished, "", Succeeded, ActFinish},
		{"barrier broken", EvBarrierBroken, Finished, "", Succeeded, ActFinish},

		{"no event", "", Running, "5", Unknown, ActFail},
		{"no such event", Event("of another kind"), Running, "5", Unknown, ActFail},
		{"no such event at the exit barrier", Event("of another kind"), Finished, "5", Unknown, ActFail},

		// What a rule of the policy makes of it.
		{"retry", EvFailed, Running, "retry 5", Stopped, ActRestart},
		{"retry without restarts", EvFailed, Running, "retry", Stopped, ActRestart},
		{"retry, after the others were told", EvFailed, Failing, "retry 5", Stopped, ActRestart},
		{"stop", EvFailed, Running, "stop 5", Failed, ActFail},
		{"drain", EvFailed, Running, "drain 5", Failed, ActDepart},
		{"drain without restarts", EvFailed, Running, "drain", Failed, ActDepart},
		{"retry of lost peers", EvNoNews, Listening, "retry 5", Stopped, ActRestart},
		{"stop of lost peers", EvNoNews, Listening, "stop 5", Failed, ActFail},
		{"no rule for what cannot start", EvStartFailed, Running, "5", Failed, ActFail},
		{"retry of what cannot start", EvStartFailed, Running, "retry 5", Stopped, ActRestart},
		{"drain of what cannot start", EvStartFailed, Running, "drain 5", Failed, ActDepart},
		{"no rule for what is stuck", EvUnhealthy, Running, "5", Unhealthy, ActFail},
		{"stuck, after the others were told to restart", EvUnhealthy, Failing, "retry 5", Unhealthy, ActFail},
		{"stop of what is stuck", EvUnhealthy, Running, "stop 5", Unhealthy, ActFail},
		{"drain of what is stuck", EvUnhealthy, Running, "drain 5", Failed, ActDepart},
		{"stop for a lost host", EvNodeGone, Running, "stop 5", Failed, ActGiveUp},
		{"stop for a lost host, as nodes wait", EvNodesWaiting, Running, "stop 5", Failed, ActGiveUp},
		{"stop for a lost host, after the others were told", EvNodeGone, Failing, "stop 5", Failed, ActWatch},
		{"retry of a lost host", EvNodeGone, Running, "retry", Stopped, ActRejoin},

		// What follows from a worker's failure, before its peers have ended.
		{"failing, and a rule drains the host", EvFailing, Running, "drain", Failed, ActAnnounce},
		{"failing, and a rule stops the job", EvFailing, Running, "stop 5", Failed, ActAnnounceFinal},
		{"failing, and a rule retries", EvFailing, Running, "retry", Failed, ActAnnounce},
		{"failing, after the others were told", EvFailing, Failing, "5", Failed, ActWatch},
		{"stopped, or lost a peer, before any worker is known to have failed", EvFailing, Running, "5 follows", Failed, ActStopOthers},
		{"failing without a word", EvFailing, Running, "5 silent", Failed, ActAnnounceLater},
		{"failing, and a rule may yet read why", EvFailing, Running, "5 unsettled", Failed, ActAnnounceLater},
		{"succeeded on the only host", EvSucceeded, Running, "alone", Succeeded, ActFinish},

		// Workers that can change their group: one fails.
		{"a member fails", EvFailing, Running, "1 live formed left member", Healthy, ActKeep},
		{"a member fails, none is replaced", EvFailing, Running, "live formed left member", Healthy, ActKeep},
		{"a member fails on the only host", EvFailing, Running, "1 live formed left member alone", Healthy, ActKeep},
		{"a member fails before the places of the round are known", EvFailing, Running, "1 live formed pending left member", Healthy, ActKeep},
		{"a member fails for lost peers", EvFailing, Running, "1 live formed left member follows", Healthy, ActKeep},
		{"the last member fails", EvFailing, Running, "1 live formed member", Healthy, ActReturn},
		{"the last member fails, none is replaced", EvFailing, Running, "live formed member", Failed, ActAnnounceFinal},
		{"the last member fails on the only host", EvFailing, Running, "1 live formed member alone", Failed, ActAnnounce},
		{"the last members fail on the only host, none is replaced", EvFailing, Running, "live formed member alone", Failed, ActAnnounceFinal},
		{"the last member fails for lost peers, none is replaced", EvFailing, Running, "live formed member follows", Failed, ActStopOthers},
		{"the last member fails without a word, none is replaced", EvFailing, Running, "live formed member silent", Failed, ActAnnounceLater},
		{"a member fails, and a rule may yet read why", EvFailing, Running, "1 live formed left member unsettled", Healthy, ActLookAgain},
		{"a member fails, and a rule retries all", EvFailing, Running, "1 live formed left member all retry", Failed, ActAnnounce},
		{"a member fails, and a rule stops the job", EvFailing, Running, "1 live formed left member all stop", Failed, ActAnnounceFinal},
		{"a member fails, and a rule drains the host", EvFailing, Running, "1 live formed left member all drain", Failed, ActAnnounce},
		{"a member fails, and a rule retries it", EvFailing, Running, "1 live formed left member retry", Healthy, ActKeep},
		{"a worker fails before it joins", EvFailing, Running, "1 live formed left", Healthy, ActReplace},
		{"a worker fails before it joins, none is replaced", EvFailing, Running, "live formed left", Healthy, ActKeep},
		{"a worker fails before it joins, and a rule retries all", EvFailing, Running, "1 live formed left all retry", Failed, ActAnnounce},
		{"a worker fails before it joins, and a rule may yet read why", EvFailing, Running, "1 live formed left unsettled", Healthy, ActLookAgain},
		{"a worker fails before there is a group", EvFailing, Running, "1 live left", Failed, ActAnnounce},
		{"a worker fails before there is a group, none left", EvFailing, Running, "live left", Failed, ActAnnounceFinal},
		{"a member fails after the others were told", EvFailing, Failing, "1", Failed, ActWatch},
		{"all workers have failed", EvFailed, Running, "1 live formed member", Healthy, ActReturn},
		{"all workers have failed, none is replaced", EvFailed, Running, "live formed member", Failed, ActFail},
		{"all workers have failed on the only host", EvFailed, Running, "1 live formed member alone", Stopped, ActRestart},
		{"all workers have failed, and a rule stops the job", EvFailed, Running, "1 live formed all stop", Failed, ActFail},
		{"all workers have failed before there is a group", EvFailed, Running, "1 live", Stopped, ActRestart},
		{"all workers lost peers", EvLostPeers, Running, "1 live formed", Healthy, ActReturn},
		{"all workers lost peers, none is replaced", EvLostPeers, Running, "live formed", Failed, ActListen},
		{"all workers lost peers, and a rule retries all", EvLostPeers, Running, "1 live formed all retry", Failed, ActListen},
		{"all workers lost peers before there is a group", EvLostPeers, Running, "1 live", Failed, ActListen},

		// They change because of what happens on other hosts, or are to change.
		{"a worker is lost elsewhere", EvPeerLive, Running, "live formed left", Healthy, ActKeep},
		{"a worker is lost elsewhere, none is left here", EvPeerLive, Running, "live formed", Healthy, ActReturn},
		{"a worker is lost elsewhere before there is a group here", EvPeerLive, Running, "live left", Healthy, ActReturn},
		{"a worker is lost elsewhere as ranks are exchanged", EvPeerLive, Assigning, "", Stopped, ActRejoin},
		{"a worker is lost elsewhere, workers here lost peers", EvPeerLive, Listening, "", Stopped, ActRejoin},
		{"a worker is lost elsewhere, after the others were told", EvPeerLive, Failing, "", Failed, ActWatch},
		{"a worker is lost elsewhere, those here had succeeded", EvPeerLive, Finished, "", Stopped, ActRejoin},
		{"a host leaves for a failure", EvPeerRestarts, Running, "live formed left drained", Healthy, ActKeep},
		{"a host leaves for a failure, none is left here", EvPeerRestarts, Running, "live formed drained", Healthy, ActReturn},
		{"a host leaves for a failure before there is a group", EvPeerRestarts, Running, "live left drained", Stopped, ActFollow},
		{"a rule restarts all elsewhere", EvPeerRestarts, Running, "live formed left", Stopped, ActFollow},
		{"the group is to change", EvLiveChange, Running, "live formed left", Healthy, ActKeep},
		{"the group is to change, none is left here", EvLiveChange, Running, "live formed", Healthy, ActIgnore},
		{"the group is to change, and there is none any more", EvLiveChange, Running, "live left", Healthy, ActReturn},
		{"the group is to change, workers here lost peers", EvLiveChange, Listening, "", Stopped, ActRejoin},
		{"the group is to change, after the others were told", EvLiveChange, Failing, "", Failed, ActWatch},
		{"a host joins", EvNodesWaiting, Running, "live formed left joins", Healthy, ActSchedule},
		{"a host joins, none is left here", EvNodesWaiting, Running, "live formed joins", Healthy, ActSchedule},
		{"a host joins before the places of the round are known", EvNodesWaiting, Running, "live formed pending left joins", Healthy, ActKeep},
		{"the same, none is left here", EvNodesWaiting, Running, "live formed pending joins", Healthy, ActReturn},
		{"a host joins before there is a group", EvNodesWaiting, Running, "live left joins", Stopped, ActRejoin},
		{"hosts wait because one is lost", EvNodesWaiting, Running, "live formed left", Healthy, ActKeep},
		{"hosts wait because one is lost, none is left here", EvNodesWaiting, Running, "live formed", Healthy, ActReturn},
		{"hosts wait because one is lost before there is a group", EvNodesWaiting, Running, "live left", Stopped, ActRejoin},
		{"hosts wait because one is lost once too often", EvNodesWaiting, Running, "live formed left stop", Failed, ActGiveUp},
		{"a host is lost", EvNodeGone, Running, "live formed left awaited", Healthy, ActKeep},
		{"a host is lost, none is left here", EvNodeGone, Running, "live formed awaited", Healthy, ActReturn},
		{"a host is lost before there is a group", EvNodeGone, Running, "live left awaited", Stopped, ActRejoin},
		{"a host is lost as ranks are exchanged", EvNodeGone, Assigning, "", Stopped, ActRejoin},
		{"a host is lost once too often", EvNodeGone, Running, "live formed left awaited stop", Failed, ActGiveUp},
		{"the holder is lost", EvNodeGone, Running, "live formed left awaited holder", Healthy, ActKeep},
		{"this host is counted as lost", EvEvicted, Running, "live formed left awaited holder", Healthy, ActKeep},
		{"this host is counted as lost before there is a group", EvEvicted, Running, "live left awaited holder", Stopped, ActRejoin},
		{"the rendezvous is lost", EvDisconnected, Running, "live formed left awaited", Failed, ActAbort},
		{"new workers are asked for", EvAsked, Running, "live formed left", Stopped, ActRejoin},

		{"all workers have succeeded", EvSucceeded, Running, "live formed left", Succeeded, ActBarrier},
		{"a worker is stuck", EvUnhealthy, Running, "1 live formed left", Unhealthy, ActFail},
		{"a worker is stuck, and a rule drains the host", EvUnhealthy, Running, "1 live formed left drain", Failed, ActDepart},
		{"the agent is told to stop", EvSignal, Running, "1 live formed left", Failed, ActStop},
		{"the job is preempted elsewhere", EvPeerPreempted, Running, "1 live formed left", Failed, ActPreempt},
		{"the job fails elsewhere", EvPeerGaveUp, Running, "1 live formed left", Failed, ActFail},
		{"the job stops elsewhere for a lost host", EvPeerLostHost, Running, "1 live formed left", Failed, ActGiveUp},
		{"the job is closed", EvClosed, Running, "1 live formed left", Failed, ActEnded},
		{"the job is closed by a host that is done", EvClosedWhenDone, Running, "live formed left", Healthy, ActWatch},
		{"a host that is done is gone", EvDoneNodeGone, Running, "live formed left", Healthy, ActWatch},

		// Their training has ended.
		{"a worker that never joined ends after the training", EvFailing, Running, "1 live formed left over", Healthy, ActIgnore},
		{"the same before there is a group", EvFailing, Running, "1 live left over", Healthy, ActIgnore},
		{"a member fails after the training", EvFailing, Running, "1 live formed left member over", Failed, ActAnnounce},
		{"a member fails after the training, none left", EvFailing, Running, "live formed left member over", Failed, ActAnnounceFinal},
		{"a member fails after the training, and a rule may yet read why", EvFailing, Running, "1 live formed left member over unsettled", Healthy, ActLookAgain},
		{"all have failed after the training", EvFailed, Running, "1 live formed over", Stopped, ActRestart},
		{"all lost peers after the training", EvLostPeers, Running, "1 live formed over", Failed, ActListen},
		{"a worker is lost elsewhere after the training", EvPeerLive, Running, "live formed over", Healthy, ActKeep},
		{"a worker is lost elsewhere after a training without a group here", EvPeerLive, Running, "live over", Healthy, ActReturn},
		{"a host leaves for a failure after the training", EvPeerRestarts, Running, "live formed over drained", Healthy, ActKeep},
		{"the group was to change after the training", EvLiveChange, Running, "live formed left over", Healthy, ActIgnore},
		{"the group was to change after the training, at the exit barrier", EvLiveChange, Finished, "over", Succeeded, ActIgnore},
		{"a host would join after the training", EvNodesWaiting, Running, "live formed left over joins", Healthy, ActIgnore},
		{"a host would join after the training, at the exit barrier", EvNodesWaiting, Finished, "over joins", Succeeded, ActIgnore},
		{"hosts wait because one is lost after the training", EvNodesWaiting, Running, "live formed left over", Healthy, ActKeep},
		{"the same at the exit barrier", EvNodesWaiting, Finished, "over", Stopped, ActRejoin},
		{"a host with members is lost after the training", EvNodeGone, Running, "live formed left over awaited", Healthy, ActInterrupt},
		{"a host without is lost after the training", EvNodeGone, Running, "live formed left over", Healthy, ActIgnore},
		{"a host is lost after the training, at the exit barrier", EvNodeGone, Finished, "over", Succeeded, ActIgnore},
		{"the holder is lost after the training", EvNodeGone, Running, "live formed left over awaited holder", Healthy, ActInterrupt},
		{"the holder is lost after the training, at the exit barrier", EvNodeGone, Finished, "over holder", Succeeded, ActFinish},
		{"this host is counted as lost after the training", EvEvicted, Running, "live formed left over awaited holder", Healthy, ActInterrupt},
		{"the same at the exit barrier of its job", EvEvicted, Finished, "over", Succeeded, ActFinish},
		{"the rendezvous is lost after the training", EvDisconnected, Running, "live formed left over awaited", Healthy, ActInterrupt},
		{"the rendezvous is lost after the training, at the exit barrier", EvDisconnected, Finished, "over", Succeeded, ActFinish},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, act := Next(tt.ev, tt.ph, know(t, tt.know))
			if state != tt.state || act != tt.act {
				t.Errorf("%s, %s, %q: %s, %s; want %s, %s", tt.ev, tt.ph, tt.know, state, act, tt.state, tt.act)
			}
		})
	}
}

// What holds whatever the facts are: only live workers, or their end, are answered by actions of theirs,
// workers are kept only if there are some, and none is replaced if none may be.
func TestNextInvariants(t *testing.T) {
	events := []Event{EvAssigned, EvAssignFailed, EvStarted, EvStartFailed, EvSucceeded, EvFailing, EvFailed, EvLostPeers,
		EvNoNews, EvUnhealthy, EvSignal, EvAsked, EvLiveChange, EvNodesWaiting, EvNodeGone, EvDoneNodeGone, EvEvicted,
		EvClosed, EvClosedWhenDone, EvDisconnected, EvPeerRestarts, EvPeerLive, EvPeerGaveUp, EvPeerLostHost,
		EvPeerPreempted, EvBarrierPassed, EvBarrierTimedOut, EvBarrierOverdue, EvBarrierBroken}
	for bits := range 1 << 13 {
		is := func(n int) bool { return bits>>n&1 == 1 }
		for _, ph := range []Phase{Assigning, Running, Failing, Finished, Listening} {
			f := Facts{RestartsLeft: bits & 1, Alone: is(1), Unsettled: is(2), Left: is(3), Member: is(4), All: is(5), Joins: is(6),
				Holder: is(7), Awaited: is(8), Drained: is(9), Live: ph == Running && is(10), Over: is(11) && (ph == Running || ph == Finished)}
			f.Formed = f.Live && is(12)
			for _, ev := range events {
				state, act := Next(ev, ph, f)
				own := ev == EvFailing || ev == EvFailed || ev == EvLostPeers
				if state == Unknown || act.IsLive() && !f.Live && !f.Over || act == ActKeep && !(f.Formed && (f.Left || f.Over)) ||
					act == ActReplace && (f.Member || f.RestartsLeft == 0) || act == ActReturn && own && f.RestartsLeft == 0 {
					t.Fatalf("%s, %s, %+v: %s, %s", ev, ph, f, state, act)
				}
			}
		}
	}
}
