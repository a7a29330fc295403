package simulate

import (
	"time"

	"github.com/muster-run/muster/internal/job/decide"
	"github.com/muster-run/muster/internal/job/live"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/internal/server"
)

// statusInterval is how often a node that waits asks for whom.
const statusInterval = 3 * time.Second

// greetTimeout bounds an agent's connecting.
const greetTimeout = time.Minute

// closeTimeout bounds what an agent does about the rendezvous when it ends.
const closeTimeout = 5 * time.Second

// An agent is the model of one of muster's: a server.Participation, with what a server.Client
// does on a connection, and the part of package agent that starts new rounds.
type agent struct {
	base
	role  string
	local int // workers
	conn  *conn
	heard time.Duration // when it last got a message
	part  server.Participation
	last  *server.Place     // of the round that it ran last
	spare bool              // it said so in its last hello
	inbox []*server.Message // what has come while it was opening

	deadline *timer // of the join
	status   *timer
	pings    *timer
	limit    *timer
	step     *timer // the end of what it is doing by itself

	workers *liveHost // its workers, in a live job
}

func (s *sim) startAgent(h *host) {
	a := &agent{base: s.newBase(h), role: roles[h.id%7%len(roles)], local: 1 + h.id%3}
	if s.cfg.Workers > 0 {
		a.role, a.local = roles[0], s.cfg.Workers
	}
	if s.cfg.Live {
		a.workers = &liveHost{a: a, host: live.Host{}, procs: map[int]*worker{}, change: 1}
	}
	h.agent = a
	s.trace("%s: agent %d starts", h.name, a.node.PID)
	a.connect()
}

var roles = []string{"trainer", "trainer", "reader"}

func (a *agent) place() (round int, spare bool) {
	if a.part.Round != nil {
		round = a.part.Round.Round
	}
	return round, a.part.Spare
}

func (a *agent) greet(c *conn) {
	if a.phase != dialing || a.conn != nil {
		return
	}
	cfg := &a.s.cfg
	a.conn, a.phase = c, greeting
	a.step.stop()
	a.step = a.s.after(cfg.limit(), a.disconnected)
	a.spare = a.part.Spare
	a.send(&server.Message{
		Type: server.Hello, Host: a.host.name, Sent: a.host.time(a.s).UnixNano(),
		Greeting: server.Greeting{
			Version: server.Version, RunID: runID, Node: &a.node, MinNodes: cfg.Min,
			MaxNodes: cfg.Max, LastCall: cfg.Settings.LastCall, KeepAlive: cfg.Settings.KeepAliveInterval, KeepAliveLimit: cfg.limit(),
			Role: a.role, LocalWorldSize: a.local, Last: a.last, Spare: a.spare, Instance: uint64(a.node.PID), Live: cfg.Live,
		},
	})
}

// connect begins a session with the holder that there is, or will be.
func (a *agent) connect() {
	a.setPhase(dialing)
	a.conn, a.inbox = nil, nil
	a.step = a.s.after(greetTimeout, a.disconnected)
	a.dial(10 * time.Millisecond)
}

func (a *agent) dial(pause time.Duration) {
	switch {
	case a.phase != dialing:
	case a.s.holderOf(a.host) == nil:
		a.s.after(pause, func() { a.dial(min(2*pause, time.Second)) })
	default:
		a.s.dial(a.host, a, a.greet)
	}
}

func (a *agent) send(m *server.Message) {
	if a.conn != nil && a.conn.open {
		a.s.send(a.conn, m)
	}
}

// watchLimit ends the session when nothing has been heard for the limit.
func (a *agent) watchLimit() {
	a.limit = a.s.after(a.heard+a.s.cfg.limit()-a.s.now, func() {
		if a.s.now < a.heard+a.s.cfg.limit() {
			a.watchLimit()
			return
		}
		a.disconnected()
	})
}

func (a *agent) ping() {
	a.pings = a.s.after(a.s.cfg.Settings.KeepAliveInterval, func() {
		a.send(&server.Message{Type: server.Ping, Sent: a.host.time(a.s).UnixNano()})
		a.ping()
	})
}

// join takes part in the next round.
func (a *agent) join() {
	a.setPhase(joining)
	a.setDeadline(a.s.cfg.Settings.Join)
	a.part.Join()
	a.send(&server.Message{Type: server.Join})
	a.askStatus()
}

func (a *agent) setDeadline(d time.Duration) {
	a.deadline.stop()
	a.deadline = nil
	if d > 0 {
		a.deadline = a.s.after(d, func() {
			a.s.result.TimedOut++
			a.leave("join timed out", true)
		})
	}
}

func (a *agent) askStatus() {
	a.status.stop()
	a.status = a.s.after(statusInterval, func() {
		a.send(&server.Message{Type: server.Status})
		a.askStatus()
	})
}

func (a *agent) receive(c *conn, m *server.Message) {
	if a.phase == ended || c != a.conn {
		return
	}
	a.heard = a.s.now
	switch {
	case a.phase == greeting:
		a.greeted(m)
	case m.Type == server.Pong:
		a.conn.holder.check.offset(a, m)
	case a.phase == joining || a.phase == placed:
		a.meet(m)
	case a.phase == opening:
		a.inbox = append(a.inbox, m)
	case a.phase == running:
		a.watch(m)
	case a.phase == leaving && m.Type == server.Left, a.phase == closing && m.Type == server.Closed:
		a.step.stop()
		a.step.do()
	}
	// In other phases nobody looks at what has come.
}

func (a *agent) greeted(m *server.Message) {
	a.step.stop()
	if m.Type != server.Welcome {
		a.conn.holder.check.refused(a, m)
		a.end("refused: " + m.Error)
		return
	}
	a.conn.holder.check.offset(a, m)
	a.watchLimit()
	a.ping()
	a.join()
}

// meet does what the participation says, and checks it.
func (a *agent) meet(m *server.Message) {
	step := a.part.Meet(m)
	if m.Type == server.Round {
		a.conn.holder.check.placed(a)
	}
	switch step {
	case server.BeSpare:
		a.setDeadline(0)
	case server.BeNoSpare:
		a.setDeadline(a.s.cfg.Settings.Join)
	case server.EndClosed:
		a.close("closed")
	case server.EndUnneeded:
		a.close("closed, as a spare")
	case server.FindStore:
		a.setPhase(opening)
		a.s.findMaster(a, roundID{a.conn.holder, m.Round}, a.run)
	case server.OpenStore:
		a.setPhase(opening)
		a.step = a.s.after(a.s.pause(5*time.Millisecond), func() {
			addr, port := a.s.openMaster(a.host, roundID{a.conn.holder, m.Round})
			a.send(&server.Message{Type: server.Master, Round: m.Round, Addr: addr, Port: port})
			a.run()
		})
	case server.Begin:
		a.conn.holder.check.master(a, m)
		a.run()
	case server.JoinAgain:
		a.setPhase(joining)
		a.part.Join()
		a.send(&server.Message{Type: server.Join})
	case server.Await:
		if m.Type == server.Round {
			a.setPhase(placed)
		}
	}
}

// run is what the agent does between the calls of Next.
func (a *agent) run() {
	a.deadline.stop()
	a.status.stop()
	m := a.part.Round
	a.last = &server.Place{Round: m.Round, Rank: m.Rank, WorldSize: m.WorldSize, First: m.First}
	a.setPhase(running)
	a.conn.holder.met()
	if a.workers != nil {
		a.workers.begin()
	}
	inbox := a.inbox
	a.inbox = nil
	for _, m := range inbox {
		if a.phase == running {
			a.watch(m)
		}
	}
}

// watch acts on what becomes of the round.
func (a *agent) watch(m *server.Message) {
	switch change, concerned := a.part.News(m); {
	case change.Kind == rendezvous.Closed:
		a.close("another node has closed the rendezvous")
	case concerned && a.workers != nil:
		a.workers.heard(change)
	case concerned:
		a.restart()
	}
}

// restart stops the workers, or those that cannot continue, and proceeds to the next round.
func (a *agent) restart() {
	if a.workers != nil {
		a.workers.handle(decide.EvNodeGone, decide.Facts{Holder: true}, -1)
		return
	}
	a.rejoin(a.s.pause(a.s.cfg.Stop))
}

func (a *agent) rejoin(pause time.Duration) {
	a.setPhase(stopping)
	a.step = a.s.after(pause, func() {
		if !a.conn.open {
			a.connect()
		} else {
			a.join()
		}
	})
}

// leave makes the agent leave the job, or the round that it could not join.
func (a *agent) leave(why string, timedOut bool) {
	a.quiet()
	if a.conn == nil || a.phase < joining {
		a.end(why)
		return
	}
	a.s.trace("%s: leaves: %s", a.host.name, why)
	a.setPhase(leaving)
	a.send(&server.Message{Type: server.Leave})
	a.step = a.s.after(closeTimeout, func() {
		if timedOut {
			a.close(why)
		} else {
			a.end(why)
		}
	})
}

// close makes this the job's last round.
func (a *agent) close(why string) {
	a.quiet()
	a.s.trace("%s: closes: %s", a.host.name, why)
	a.setPhase(closing)
	a.send(&server.Message{Type: server.Close})
	a.step = a.s.after(closeTimeout, func() { a.end(why) })
}

func (a *agent) succeed() { a.close("the job has succeeded") }

// quiet calls off what the agent would do by itself, but keep its session, and ends its workers.
func (a *agent) quiet() {
	stopAll(a.deadline, a.status, a.step)
	if a.workers != nil {
		a.workers.end(!a.host.up)
	}
}

func (a *agent) eof(c *conn) {
	if c == a.conn && a.phase != ended {
		a.disconnected()
	}
}

// lostServer is why an agent ends that somebody may start again.
const lostServer = "lost the rendezvous"

// disconnected is the end of an agent whose rendezvous cannot be reached, or of its
// session with a server that another one takes the place of.
func (a *agent) disconnected() {
	if a.s.cfg.Elected && a.phase < leaving && a.phase != dialing {
		a.follow()
		return
	}
	a.s.result.Lost++
	a.end(lostServer)
}

// follow continues with the next server. Its loss is that of a node, to workers.
func (a *agent) follow() {
	stopAll(a.pings, a.limit, a.deadline, a.status)
	if a.conn != nil {
		a.s.closeUp(a.conn)
	}
	switch a.phase {
	case running:
		a.restart()
	case stopping:
	default:
		a.step.stop()
		a.connect()
	}
}

func (a *agent) end(why string) {
	if a.phase == ended {
		return
	}
	a.quiet()
	stopAll(a.pings, a.limit)
	if a.over(why) {
		if a.conn != nil && a.host.up {
			a.s.closeUp(a.conn)
		}
		a.s.agentEnded(a.host, why)
	}
}
