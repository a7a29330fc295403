package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/muster-run/muster/internal/format/text"
	"github.com/muster-run/muster/internal/wait/parallel"
	"github.com/muster-run/muster/internal/wire/hostport"
	"github.com/muster-run/muster/launch"
	"github.com/muster-run/muster/rendezvous"
	"github.com/muster-run/muster/rendezvous/c10d"
	"github.com/muster-run/muster/store"
)

const (
	// exchange bounds what hosts that have met wait for each other.
	exchange = 20 * time.Second
	// doneLimit is how long the host with the store waits for the others to have
	// read the results.
	doneLimit = 5 * time.Second
	// maxMesh is the number of hosts up to which all connect to all.
	maxMesh = 32
	// neighbours is how many the hosts of a larger job connect to.
	neighbours = 8
	// width is how many hosts are tried at once.
	width = 8
	// maxSaid bounds what one host tells the others at once.
	maxSaid = 1 << 20
)

// A hostInfo is what a host tells the others of itself.
type hostInfo struct {
	Name  string  `json:"name"`
	Port  int     `json:"port"` // of its listener
	Token string  `json:"token"`
	Iface string  `json:"iface"` // of the first address
	MTU   int     `json:"mtu"`
	Addrs []place `json:"addrs"` // the first is the rendezvous'
}

// A place is an address of a host at which workers may be.
type place struct {
	Addr string `json:"addr"`
	What string `json:"what,omitempty"` // why it may be used
}

// A finding is what one host has seen of another at one address.
type finding struct {
	To      int           `json:"to"`
	Place   int           `json:"place"`             // index of the other's Addrs
	Problem string        `json:"problem,omitempty"` // "" if it can be reached
	Trip    time.Duration `json:"trip,omitempty"`
	Offset  time.Duration `json:"offset,omitempty"` // how far the other's clock is ahead
	Stuck   string        `json:"stuck,omitempty"`  // why bulk bytes did not arrive
	Passes  int           `json:"passes,omitempty"` // then: the largest packet that does
}

// A result is all that one host has found.
type result struct {
	Findings []finding `json:"findings"`
}

// handler is the rendezvous of the doctors, which is that of the job under another run ID.
func (d *doctor) handler(ctx context.Context) (rendezvous.Handler, error) {
	settings := d.Settings
	settings.Join, settings.LastCall = d.Wait, min(settings.LastCall, 5*time.Second)
	if d.Backend == "quorum" {
		settings.DataDir = "" // the job's
	}
	spec := rendezvous.Spec{
		RunID: "muster-doctor." + d.RunID, Endpoint: d.endpoint(), MinNodes: d.MinNodes, MaxNodes: d.MaxNodes,
		LocalWorldSize: 1, Host: d.hostname, LocalAddr: d.LocalAddr, OnWaiting: d.tell, Settings: settings, Logger: d.Logger,
	}
	if d.Members != nil {
		backend, err := launch.FindBackend(d.Backend)
		if err != nil {
			return nil, err
		}
		return backend.New(spec)
	}
	// A store that stays may hold what an earlier meeting has left, whose rounds had the
	// same numbers. The first host's address reaches all others with the round and is
	// not dialled; with a number in it that is new, it tells this meeting from others.
	spec.LocalAddr = d.rendezvousAddr(ctx) + "#" + strconv.FormatUint(rand.Uint64(), 36)
	return c10d.New(spec)
}

// meet meets the other hosts and tries the network between them.
func (d *doctor) meet(ctx context.Context) []Line {
	handler, err := d.handler(ctx)
	if err != nil {
		return []Line{failure(err.Error(), "")}
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), doneLimit)
		defer cancel()
		_ = handler.Leave(closing) // its end is all that the others see
	}()
	info, err := handler.Next(ctx)
	if err != nil {
		return []Line{d.unmet(err).as("meeting")}
	}
	s := &session{d: d, store: store.Prefix("muster.doctor."+info.MasterAddr, info.Store), rank: info.Rank,
		size: info.WorldSize}
	lines, err := s.examine(ctx)
	if err != nil {
		lines = append(lines, failure(fmt.Sprintf("the hosts have met, but then: %v", err),
			"see what doctor says on the other hosts").as("meeting"))
	}
	return lines
}

// tell says for whom this host waits.
func (d *doctor) tell(w rendezvous.Waiting) {
	if d.Progress != nil && (w.MaxNodes > 0 || w.Note != "") {
		fmt.Fprintf(d.Progress, "muster doctor: %s\n", text.AsOptions.Replace(w.String()))
	}
}

// unmet says why the hosts did not meet.
func (d *doctor) unmet(err error) Line {
	late, found := errors.AsType[*rendezvous.TimeoutError](err)
	if !found && !errors.Is(err, context.DeadlineExceeded) {
		return failure(err.Error(), "give all hosts the same options")
	}
	came := "the hosts did not meet at " + d.endpoint()
	if found && late.Waiting.MaxNodes > 0 {
		came = fmt.Sprintf("%d of %d hosts came to %s", late.Waiting.Joined, late.Waiting.MinNodes, d.endpoint())
		if late.Waiting.Known != nil {
			came += " (" + names(late.Waiting.Known) + ")"
		}
	}
	came += fmt.Sprintf(" within %v", d.Wait)
	if found && late.Waiting.Note != "" {
		came += ": " + late.Waiting.Note
	}
	return failure(came,
		"run `muster doctor` with the same options on every host at about the same time (--wait SECONDS gives more); on "+
			"a host that is missing here it says what is in the way")
}

// A session is a meeting that is complete.
type session struct {
	d          *doctor
	store      store.Store
	rank, size int
	hosts      []*hostInfo // nil for one that said nothing
}

// examine tells the others where this host is, tries them, and puts together what all
// have found.
func (s *session) examine(ctx context.Context) ([]Line, error) {
	token := strconv.FormatUint(rand.Uint64(), 36)
	l, err := listen(token, s.d.System)
	if err != nil {
		return nil, err
	}
	defer l.stop()
	own := hostInfo{Name: s.d.hostname, Port: l.port(), Token: token, Addrs: s.d.places(ctx)}
	if addr, err := netip.ParseAddr(own.Addrs[0].Addr); err == nil {
		i := s.d.interfaceOf(addr)
		own.Iface, own.MTU = i.Name, i.MTU
	}
	if err := s.put(ctx, "host", own); err != nil {
		return nil, err
	}
	s.hosts = get[hostInfo](ctx, s, "host", exchange)
	for _, h := range s.hosts {
		if h != nil && len(h.Addrs) == 0 {
			return nil, fmt.Errorf("%q has told no address of its own; does it run another version of muster?", h.Name)
		}
	}
	to := targets(s.rank, s.size)
	mine := result{Findings: slices.Concat(parallel.Map(len(to), width,
		func(i int) []finding { return s.try(ctx, to[i]) })...)}
	if err := s.put(ctx, "result", mine); err != nil {
		return nil, err
	}
	lines := judge(s.d.endpoint(), s.hosts, get[result](ctx, s, "result", exchange))
	// The host that serves the store must not end it before all have read.
	if err := s.put(ctx, "done", 1); err == nil && !slices.Contains(get[int](ctx, s, "done", doneLimit), nil) {
		s.tidy(ctx)
	}
	return lines, nil
}

// tidy removes what this host has told, of which a store that stays has no use.
func (s *session) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, what := range []string{"host", "result"} {
		if _, err := s.store.Delete(ctx, s.key(what, s.rank)); err != nil {
			return // the store's host has left already
		}
	}
}

// places lists the addresses at which this host's agent and workers may be looked
// for: the rendezvous' first.
func (d *doctor) places(ctx context.Context) []place {
	list := []place{{Addr: d.rendezvousAddr(ctx)}}
	add := func(addr, what string) {
		if !slices.ContainsFunc(list, func(p place) bool { return p.Addr == addr }) {
			list = append(list, place{addr, what})
		}
	}
	gloo := false
	for _, c := range chosen {
		text, set := d.System.Lookup(c.env)
		if !set || text == "" {
			continue
		}
		gloo = gloo || c.library == "Gloo"
		if found := matching(d.ifaces, c.env, text); len(found) > 0 && len(found[0].Addrs) > 0 {
			add(found[0].Addrs[0].String(), c.env+"="+text)
		}
	}
	if !gloo {
		// A loopback address is checkNames' business.
		if addrs, _, err := d.resolve(ctx, d.hostname); err == nil && len(addrs) > 0 && !addrs[0].IsLoopback() {
			add(addrs[0].String(), "where Gloo looks, the address of its name")
		}
	}
	return list
}

// rendezvousAddr is the address that the agent gives the others.
func (d *doctor) rendezvousAddr(ctx context.Context) string {
	if d.LocalAddr != "" {
		return d.LocalAddr
	}
	for _, m := range d.Members {
		if addr, err := netip.ParseAddr(hostport.WayTo(ctx, address(m))); err == nil && !addr.IsLoopback() {
			return addr.String()
		}
	}
	if len(d.Members) == 0 && !d.hosting(ctx) {
		if addr := hostport.WayTo(ctx, d.endpoint()); addr != "" {
			return addr
		}
	}
	if addrs, _, err := d.resolve(ctx, d.Host); err == nil {
		for _, a := range addrs {
			if !a.IsLoopback() && d.interfaceOf(a).Name != "" {
				return a.String()
			}
		}
	}
	return first(d.ownRoutable(), d.hostname)
}

func (s *session) key(what string, rank int) string { return what + "." + strconv.Itoa(rank) }

// put tells the others.
func (s *session) put(ctx context.Context, what string, value any) error {
	text, _ := json.Marshal(value) // texts and numbers
	return s.store.Set(ctx, s.key(what, s.rank), text)
}

// get returns what each host has told, nil for those that did not within limit.
func get[T any](ctx context.Context, s *session, what string, limit time.Duration) []*T {
	keys := make([]string, s.size)
	for rank := range keys {
		keys[rank] = s.key(what, rank)
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	all := s.store.Wait(waiting, keys...) == nil
	reading, cancel := context.WithTimeout(ctx, doneLimit)
	defer cancel()
	list := make([]*T, s.size)
	for rank, key := range keys {
		if !all {
			if there, err := s.store.Check(reading, key); err != nil || !there {
				continue
			}
		}
		text, err := s.store.Get(reading, key)
		value := new(T)
		if err == nil && len(text) <= maxSaid && json.Unmarshal(text, value) == nil {
			list[rank] = value
		}
	}
	return list
}

// targets lists the hosts that one tries: all of them in a job of up to maxMesh, in a
// larger one those that follow, and the first, which tries all.
func targets(rank, size int) (list []int) {
	for i := 1; i < size; i++ {
		to := (rank + i) % size
		if size <= maxMesh || rank == 0 || to == 0 || i <= neighbours {
			list = append(list, to)
		}
	}
	return list
}

func (s *session) caller(rank, place int) caller {
	h := s.hosts[rank]
	return caller{s.d.System, net.JoinHostPort(h.Addrs[place].Addr, strconv.Itoa(h.Port)), h.Token}
}

// maxPlaces is how many addresses of a host are tried.
const maxPlaces = 4

// try tries a host at each of its addresses.
func (s *session) try(ctx context.Context, rank int) []finding {
	if s.hosts[rank] == nil {
		return nil
	}
	n := min(len(s.hosts[rank].Addrs), maxPlaces)
	return parallel.Map(n, n, func(place int) finding {
		f := s.caller(rank, place).probe(ctx)
		f.To, f.Place = rank, place
		return f
	})
}
