package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/format/text"
)

const (
	// clockWarning is how far clocks may be apart until logs of several hosts can no
	// longer be read side by side; clockFailure until keep-alives of torch's agents,
	// which compare times of different hosts, look old (15 s) when they are new.
	clockWarning = 500 * time.Millisecond
	clockFailure = 10 * time.Second
	// slowTrip is more than any two hosts of one place are apart.
	slowTrip = 5 * time.Millisecond
	// maxNamed is how many lines one kind of problem gets.
	maxNamed = 8
	oneByOne = "--json on a smaller --nnodes shows them one by one"
)

// judge puts together what the hosts have found. It is the same on every host. A nil
// host or result is one that did not come.
func judge(endpoint string, hosts []*hostInfo, results []*result) []Line {
	v := newVerdict(endpoint, hosts, results)
	return slices.Concat(v.meeting(), v.connections(), v.packets(), v.clocks())
}

// A verdict is what all hosts have found, checked: what other hosts say may be anything.
// Hosts are numbered by their ranks in the meeting.
type verdict struct {
	endpoint string
	hosts    []*hostInfo // what they say of themselves, fit for a terminal
	names    []string    // of the hosts, each another
	silent   []string    // the names of those that said nothing, or found nothing
	seen     []sighting  // of each host by others, by who saw it
	first    map[[2]int]finding
}

// A sighting is what one host found of another at one of its addresses.
type sighting struct {
	from int
	at   place
	finding
}

func newVerdict(endpoint string, hosts []*hostInfo, results []*result) *verdict {
	v := &verdict{endpoint: endpoint, hosts: make([]*hostInfo, len(hosts)), first: map[[2]int]finding{}}
	for i, h := range hosts {
		if h != nil {
			clean := *h
			clean.Addrs = slices.Clone(h.Addrs)
			text.Each(&clean, func(s string) string { return text.Line(s, 80) })
			v.hosts[i] = &clean
		}
	}
	v.names = uniqueNames(v.hosts)
	exists := func(rank int) bool { return rank >= 0 && rank < len(hosts) && hosts[rank] != nil }
	for from, r := range results {
		if hosts[from] == nil || r == nil {
			v.silent = append(v.silent, v.names[from])
		}
		if r == nil {
			continue
		}
		for _, f := range r.Findings {
			if !exists(f.To) || f.To == from {
				continue
			}
			v.seen = append(v.seen, sighting{from, v.place(f.To, f.Place), f})
			if f.Place == 0 {
				v.first[[2]int{from, f.To}] = f
			}
		}
	}
	return v
}

// place is an address of a host that exists.
func (v *verdict) place(rank, index int) place {
	if addrs := v.hosts[rank].Addrs; index >= 0 && index < len(addrs) {
		return addrs[index]
	}
	return place{Addr: "?"}
}

// uniqueNames are the hosts', told apart where two have the same.
func uniqueNames(hosts []*hostInfo) []string {
	list := make([]string, len(hosts))
	count := map[string]int{}
	for i, h := range hosts {
		if h != nil {
			list[i] = h.Name
		}
		count[list[i]]++
	}
	for i, name := range list {
		if count[name] > 1 || name == "" {
			list[i] = fmt.Sprintf("%s (no. %d)", cmp.Or(name, "a host"), i)
		}
	}
	return list
}

// meeting says who has met.
func (v *verdict) meeting() []Line {
	var met []string
	for i, h := range v.hosts {
		if h != nil {
			met = append(met, fmt.Sprintf("%s (%s)", v.names[i], h.Addrs[0].Addr))
		}
	}
	lines := []Line{ok("%d hosts met at %s: %s", len(v.hosts), v.endpoint, names(met))}
	if v.silent != nil {
		lines = append(lines, failure("the meeting has lost contact with "+names(v.silent), "see what doctor says there"))
	}
	return named("meeting", lines)
}

// connections says who cannot reach whom, in which direction, and at which address.
func (v *verdict) connections() []Line {
	if len(v.seen) == 0 {
		return nil
	}
	var faults []fault
	var slowest sighting
	for _, s := range v.seen {
		if kind := v.kind(s); kind != nothingNew {
			faults = append(faults, fault{kind, s.from, s.To, s.at, text.Line(s.Problem, 200)})
		} else if s.Problem == "" && s.Place == 0 && s.Trip > slowest.Trip {
			slowest = s
		}
	}
	var lines []Line
	for _, g := range gather(faults) {
		lines = append(lines, v.unreached(g))
	}
	switch {
	case lines != nil:
	case slowest.Trip > slowTrip:
		lines = []Line{warning(fmt.Sprintf("all hosts reach each other, but a round trip from %s to %s takes %s",
			v.names[slowest.from], v.names[slowest.To], round(slowest.Trip)),
			"hosts of one job should be near each other: in one rack, placement group or zone")}
	default:
		lines = []Line{ok("all hosts reach each other in both directions; the longest round trip is %s", round(slowest.Trip))}
	}
	return limited("connections", lines, "more connections that fail", oneByOne)
}

// kind says what a problem at an address means, seeing what else is known of the pair.
func (v *verdict) kind(s sighting) faultKind {
	back, tried := v.first[[2]int{s.To, s.from}]
	switch {
	case s.Problem == "":
		return nothingNew
	case s.Place > 0:
		if first, tried := v.first[[2]int{s.from, s.To}]; !tried || first.Problem != "" {
			return nothingNew // nothing reaches it, whatever the interface
		}
		return wrongInterface
	case !tried:
		return notReached
	case back.Problem == "":
		return oneWay
	case s.from < s.To:
		return bothWays
	}
	return nothingNew // said of the other direction
}

// unreached is the line of some faults of one kind.
func (v *verdict) unreached(g *group) Line {
	from, to := v.list(g.from), v.list(g.to)
	at := ""
	if len(g.to) == 1 {
		at = " at " + g.place.Addr
	}
	switch g.kind {
	case wrongInterface:
		host := v.hosts[g.to[0]]
		works := host.Addrs[0].Addr
		if host.Iface != "" {
			works = host.Iface + ", which has " + works
		}
		return failure(fmt.Sprintf("%s cannot reach %s%s (%s): %s: the wrong interface, or one that is not connected",
			from, to, at, g.place.What, g.problem),
			fmt.Sprintf("on %s, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface by which it is reached (%s)",
				to, works)).as("interfaces")
	case oneWay:
		reach := "reaches"
		if len(g.to) > 1 {
			reach = "reach"
		}
		return failure(fmt.Sprintf("%s %s %s, but %s cannot reach %s%s: %s: a firewall that lets one direction through",
			to, reach, from, from, to, at, g.problem), allow(from, to))
	case bothWays:
		return failure(fmt.Sprintf("%s and %s cannot reach each other%s: %s", from, to, at, g.problem),
			allow(from, to)+", and the other way round")
	}
	return failure(fmt.Sprintf("%s cannot reach %s%s: %s", from, to, at, g.problem), allow(from, to))
}

func allow(from, to string) string {
	return fmt.Sprintf("let TCP from %s to %s through on all ports: workers listen on free ones (nft list ruleset, "+
		"firewalld, the cloud's security group)", from, to)
}

// packets says between whom large packets vanish, and whose MTU differs.
func (v *verdict) packets() []Line {
	var faults []fault
	tried := false
	for _, s := range v.seen {
		tried = tried || s.Problem == ""
		switch at := (place{Addr: s.at.Addr}); {
		case s.Problem != "":
		case s.Passes > 0:
			faults = append(faults, fault{packetsVanish, s.from, s.To, at, strconv.Itoa(s.Passes)})
		case s.Stuck != "":
			faults = append(faults, fault{bytesVanish, s.from, s.To, at, text.Line(s.Stuck, 120)})
		}
	}
	var lines []Line
	for _, g := range gather(faults) {
		lines = append(lines, v.stuck(g))
	}
	if lines == nil && tried {
		lines = append(lines, ok("1 MiB passes between all hosts"))
	}
	return append(limited("MTU", lines, "more pairs of hosts like that", oneByOne), v.mtus()...)
}

// stuck is the line of connections that carry nothing large.
func (v *verdict) stuck(g *group) Line {
	from, to := v.list(g.from), v.list(g.to)
	if len(g.to) == 1 {
		to += " (" + g.place.Addr + ")"
	}
	if g.kind == bytesVanish {
		return failure(fmt.Sprintf("1 MiB from %s to %s does not arrive within %v (%s), in packets of any size",
			from, to, bulkLimit, g.problem), "look for lost packets: ip -s link, ethtool -S; the cable, the switch port")
	}
	but := ""
	if h := v.hosts[g.from[0]]; h != nil && h.MTU > 0 {
		but = fmt.Sprintf(", but %s has the MTU %d", h.Iface, h.MTU)
	}
	return failure(fmt.Sprintf("packets from %s to %s of more than %s bytes vanish on the way%s: a connection is "+
		"made, and then hangs", from, to, g.problem, but),
		fmt.Sprintf("set the MTU on all hosts to what the network carries (ip link set dev NAME mtu %s), let ICMP "+
			"\"fragmentation needed\" through, or sysctl net.ipv4.tcp_mtu_probing=1", g.problem))
}

// mtus says that hosts have different MTUs.
func (v *verdict) mtus() []Line {
	hosts := map[int][]string{}
	for i, h := range v.hosts {
		if h != nil && h.MTU > 0 {
			hosts[h.MTU] = append(hosts[h.MTU], v.names[i])
		}
	}
	if len(hosts) < 2 {
		return nil
	}
	var parts []string
	for _, mtu := range slices.Sorted(maps.Keys(hosts))[:min(len(hosts), maxNamed)] {
		parts = append(parts, fmt.Sprintf("%d on %s", mtu, names(hosts[mtu])))
	}
	return []Line{warning("the hosts have different MTUs: "+strings.Join(parts, "; "),
		"give all the same: UDP and RDMA between them break where TCP only gets slow").as("MTU")}
}

// clocks compares the hosts' clocks: those of two with each other, those of more with
// the one in the middle, so that a single wrong one is named.
func (v *verdict) clocks() []Line {
	ahead := v.ahead()
	if len(ahead) < 2 {
		return nil
	}
	hosts := slices.SortedFunc(maps.Keys(ahead),
		func(a, b int) int { return cmp.Or(cmp.Compare(ahead[a].by, ahead[b].by), a-b) })
	middle := hosts[(len(hosts)-1)/2]
	others := "that of " + v.names[middle]
	if len(hosts) > 2 {
		others = "those of most hosts"
	}
	var lines []Line
	var most time.Duration
	for _, i := range hosts {
		// An answer may be as old, or as young, as half the round trip.
		by := ahead[i].by - ahead[middle].by
		apart := max(0, by.Abs()-ahead[i].unsure-ahead[middle].unsure)
		most = max(most, apart)
		side := "ahead of"
		if by < 0 {
			side = "behind"
		}
		text := fmt.Sprintf("the clock of %s is %s %s %s", v.names[i], round(apart), side, others)
		const fix = "synchronise all hosts' clocks (chronyc tracking, timedatectl set-ntp true)"
		switch {
		case apart > clockFailure:
			lines = append(lines, failure(text+": keep-alives of torch's agents look dead, and certificates may not be valid",
				fix))
		case apart > clockWarning:
			lines = append(lines, warning(text, fix))
		}
	}
	if lines == nil {
		lines = append(lines, ok("the hosts' clocks are at most %s apart", round(most)))
	}
	return limited("clocks", lines, "more clocks", oneByOne)
}

// An offset is how far a clock is ahead of the first host's.
type offset struct{ by, unsure time.Duration }

// ahead returns those of all hosts of which it is known, by their own words or the
// first's, whichever took less time.
func (v *verdict) ahead() map[int]offset {
	found := map[int]offset{}
	for _, s := range v.seen {
		host, by := s.To, s.Offset
		if s.To == 0 {
			host, by = s.from, -s.Offset
		}
		if s.Problem != "" || s.from != 0 && s.To != 0 {
			continue
		}
		if old, known := found[host]; !known || s.Trip/2 < old.unsure {
			found[host] = offset{by, max(0, s.Trip/2)}
		}
		found[0] = offset{}
	}
	return found
}

// limited names lines after a check, keeps maxNamed of them, failures first, and says how
// many more there are.
func limited(check string, lines []Line, what, advice string) []Line {
	if more := len(lines) - maxNamed; more > 0 {
		slices.SortStableFunc(lines, func(a, b Line) int { return severity[b.Status] - severity[a.Status] })
		worst := lines[maxNamed].Status
		lines = append(lines[:maxNamed:maxNamed], Line{Status: worst, Text: fmt.Sprintf("and %d %s", more, what),
			Advice: advice})
	}
	return named(check, lines)
}

// list are names of hosts.
func (v *verdict) list(hosts []int) string {
	var list []string
	for _, i := range hosts {
		list = append(list, v.names[i])
	}
	return names(list)
}

// names lists some names.
func names(list []string) string {
	if len(list) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
	}
	return strings.Join(list, ", ")
}
