package simulate

import (
	"bytes"
	"time"

	"github.com/muster-run/muster/rendezvous/internal/pickle"
	"github.com/muster-run/muster/rendezvous/internal/server"
	"github.com/muster-run/muster/rendezvous/internal/state"
)

// How PyTorch's agents look at the state: at most once a second.
const (
	torchPoll   = time.Second
	torchDelay  = 300 * time.Millisecond // the longest pause before the first join
	readTimeout = 60 * time.Second
)

// A torchAgent is the model of one of PyTorch's agents: it reads the pickled state and
// compares and sets it, by its own clock, as dynamic_rendezvous.py does.
// Source: DynamicRendezvousHandler, _BackendRendezvousStateHolder,
// _DistributedRendezvousOpExecutor.
type torchAgent struct {
	base
	spare             bool
	round, rank, size int

	token  []byte
	state  *state.State
	synced time.Duration // when state was read last; it is good for a second
	dirty  bool
	locked bool     // an operation is in progress
	wants  []func() // what waits for it to be over

	deadline time.Duration
	wait     *timer
	beats    *timer
	reply    *timer // the store's timeout
	call     int    // which call of the store is in progress
	publish  bool   // it has published MASTER_ADDR once
}

func (s *sim) startTorch(h *host) {
	f := &torchAgent{base: s.newBase(h), synced: -forever}
	h.agent = f
	s.trace("%s: PyTorch's agent %d starts", h.name, f.node.PID)
	f.next()
}

func (f *torchAgent) place() (round int, spare bool) { return f.round, f.spare }
func (f *torchAgent) receive(*conn, *server.Message) {}
func (f *torchAgent) eof(*conn)                      {}

// request does something at the store and calls done when the answer has come.
func (f *torchAgent) request(at func(), done func()) {
	f.call++
	call := f.call
	f.reply = f.s.after(readTimeout, f.cut)
	f.s.at(f.s.now+f.s.transit(f.host), func() {
		f.s.holder.work(func() {
			at()
			f.s.at(f.s.now+f.s.transit(f.host), func() {
				if f.phase != ended && f.call == call && f.current() {
					f.reply.stop()
					done()
				}
			})
		})
	})
}

// sync reads the state, or writes it if it is dirty.
func (f *torchAgent) sync(done func()) {
	var text []byte
	switch {
	case f.dirty:
		want, token := pickle.EncodeText(f.state), f.token
		f.request(func() { text = f.s.holder.compareAndSet(token, want) }, func() { f.accept(text, done) })
	case f.s.now-f.synced < torchPoll:
		done()
	default:
		f.request(func() { text = f.s.holder.read() }, func() { f.accept(text, done) })
	}
}

func (f *torchAgent) accept(text []byte, done func()) {
	f.token, f.dirty, f.synced = text, false, f.s.now
	f.state = f.s.decode(text)
	// Source: _sanitize.
	expire := f.now().Add(-f.s.cfg.limit())
	var dead []state.Node
	for n, at := range f.state.LastHeartbeats {
		if at.Before(expire) {
			dead = append(dead, n)
		}
	}
	f.state.Drop(f.rules(), dead...)
	f.s.holder.check.dropped(f, dead)
	done()
}

func (f *torchAgent) now() time.Time { return f.host.time(f.s).Truncate(time.Microsecond) }

func (f *torchAgent) rules() state.Rules {
	cfg := &f.s.cfg
	return state.Rules{MinNodes: cfg.Min, MaxNodes: cfg.Max, LastCall: cfg.Settings.LastCall, KeepAliveInterval: cfg.Settings.KeepAliveInterval}
}

// run performs an operation: it syncs, decides and acts until decide says that it
// is over.
func (f *torchAgent) run(decide func() state.Action, done func(state.Action)) {
	f.sync(func() {
		switch a := decide(); a {
		case state.Finish, state.FailClosed, state.FailRedundant, state.FailTimeout:
			done(a)
		case state.Sync:
			f.wait = f.s.after(torchPoll, func() { f.run(decide, done) })
		default:
			if a == state.RemoveFromRedundancyList {
				f.deadline = f.s.now + f.s.cfg.Settings.Join
			}
			f.state.Do(a, f.node, f.rules(), f.now())
			f.dirty = true
			f.run(decide, done)
		}
	})
}

// next is next_rendezvous.
func (f *torchAgent) next() {
	f.beats.stop()
	f.wants, f.locked = nil, false
	f.setPhase(joining)
	pause := time.Duration(0)
	if f.state == nil || f.state.Round == 0 {
		pause = time.Duration(f.s.rng.Int64N(int64(torchDelay)))
	}
	f.wait = f.s.after(pause, func() {
		f.deadline = f.s.now + f.s.cfg.Settings.Join
		f.run(func() state.Action { return f.state.Exit(f.node) }, func(state.Action) {
			f.s.holder.check.causes++ // it has left its round
			f.run(func() state.Action {
				f.spare = f.state.RedundancyList.Has(f.node)
				return f.state.Join(f.node, f.rules(), f.now(), f.now().Add(f.deadline-f.s.now))
			}, f.joined)
		})
	})
}

func (f *torchAgent) joined(a state.Action) {
	switch a {
	case state.FailClosed:
		f.end("closed")
		return
	case state.FailRedundant:
		f.end("closed, as a spare")
		return
	case state.FailTimeout:
		f.s.result.TimedOut++
		f.closeAll("join timed out")
		return
	}
	f.spare = false
	f.round, f.rank, f.size = f.state.Round, f.state.Participants[f.node], len(f.state.Participants)
	f.s.trace("%s: round %d rank %d/%d", f.host.name, f.round, f.rank, f.size)
	f.s.holder.check.torchPlaced(f)
	f.beat()
	f.setPhase(opening)
	switch {
	case f.rank == 0:
		f.request(func() { f.s.openMaster(f.host, roundID{f.s.holder, f.round}) }, f.watch)
		f.publish = true
	case f.publish:
		f.watch() // it asks once in its life
	default:
		// Nothing else goes over its connection meanwhile, keep-alives neither.
		f.publish = true
		f.lock(func() {
			f.reply = f.s.after(readTimeout, f.cut)
			f.s.findMaster(f, roundID{f.s.holder, f.round}, func() {
				f.reply.stop()
				f.unlock()
				f.watch()
			})
		})
	}
}

// watch polls num_nodes_waiting.
func (f *torchAgent) watch() {
	f.setPhase(running)
	f.s.holder.met()
	f.poll()
}

func (f *torchAgent) poll() {
	f.wait = f.s.after(torchPoll, func() {
		f.lock(func() {
			f.sync(func() {
				f.unlock()
				switch {
				case f.phase != running:
				case len(f.state.WaitList) > 0:
					f.restart()
				case f.state.Round != f.round || len(f.state.Participants) < f.size:
					f.s.failWorker(f.host) // so do workers whose peers are gone
				default:
					f.poll()
				}
			})
		})
	})
}

// beat sends keep-alives.
func (f *torchAgent) beat() {
	f.beats = f.s.after(f.s.cfg.Settings.KeepAliveInterval, func() {
		f.lock(func() {
			f.run(func() state.Action { return f.state.Stay(f.node, f.rules(), f.now()) }, func(state.Action) { f.unlock() })
		})
		f.beat()
	})
}

// lock makes do happen when no other operation is in progress.
func (f *torchAgent) lock(do func()) {
	if f.locked {
		f.wants = append(f.wants, do)
		return
	}
	f.locked = true
	do()
}

func (f *torchAgent) unlock() {
	f.locked = false
	if len(f.wants) > 0 && f.phase != ended {
		do := f.wants[0]
		f.wants = f.wants[1:]
		f.lock(do)
	}
}

// restart stops the workers and proceeds to the next round.
func (f *torchAgent) restart() {
	f.wait.stop()
	f.setPhase(stopping)
	f.wait = f.s.after(f.s.pause(f.s.cfg.Stop), func() { f.lock(f.next) })
}

// cut ends the agent since the store does not answer.
func (f *torchAgent) cut() {
	f.s.result.Lost++
	f.end(lostServer)
}

func (f *torchAgent) succeed() {
	if f.phase == running {
		f.wait.stop()
		f.lock(func() { f.closeAll("the job has succeeded") })
	}
}

// closeAll closes the rendezvous and ends.
func (f *torchAgent) closeAll(why string) {
	stopAll(f.wait, f.beats)
	f.setPhase(closing)
	f.run(func() state.Action { return f.state.End() }, func(state.Action) { f.end(why) })
}

func (f *torchAgent) end(why string) {
	if f.phase == ended {
		return
	}
	stopAll(f.wait, f.beats, f.reply)
	if f.over(why) {
		f.s.agentEnded(f.host, why)
	}
}

// read is what the store's mirror does about a GET.
func (v *holder) read() []byte {
	if !v.created {
		return v.text
	}
	if text, changed := v.rdzv.Text(v.s.clock()); changed {
		v.text = text
	}
	return v.text
}

// compareAndSet is what it does about a COMPARE_SET.
func (v *holder) compareAndSet(token, want []byte) []byte {
	current := v.read()
	if !bytes.Equal(current, token) {
		return current
	}
	v.text = want
	if !v.created {
		return want
	}
	v.s.trace("holder: adopts")
	v.do(func(now time.Time) { v.rdzv.Adopt(now, want) })
	return want
}

// decode reads a state, most often the one that was read last.
func (s *sim) decode(text []byte) *state.State {
	if s.cache.state == nil || !bytes.Equal(text, s.cache.pickled) {
		st, err := pickle.DecodeText(text)
		if err != nil {
			s.fail("the pickled state cannot be read: %v", err)
		}
		if st == nil {
			st = state.NewState()
		}
		s.cache.pickled, s.cache.state = text, st
	}
	return s.cache.state.Clone()
}
