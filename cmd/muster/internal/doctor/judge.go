package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-run/muster/internal/text"
)

const (
	// clockWarning is how far clocks may be apart until logs of several hosts can no
	// longer be read side by side; clockFailure until keep-alives of torch's agents,
	// which compare times of different hosts, look old (15 s) when they are new.
	clockWarning = 500 * time.Millisecond
	clockFailure = 10 * time.Second
	// slowTrip is more than any two hosts of one place are apart.
	slowTrip = 5 * time.Millisecond
	// slowRate is less than any network for training gives, Gbit/s.
	slowRate = 0.8
	// maxNamed is how many lines one kind of problem gets.
	maxNamed = 8
)

// judge puts together what the hosts have found. It is the same on every host. A nil
// card or result is one that did not come.
func judge(endpoint string, cards []*card, results []*result) []Line {
	cards = clean(cards)
	j := &verdict{endpoint: endpoint, cards: cards, results: results, names: uniqueNames(cards)}
	return slices.Concat(j.meeting(), j.connections(), j.packets(), j.clocks(), j.speed())
}

// A verdict is being reached.
type verdict struct {
	endpoint string
	cards    []*card
	results  []*result
	names    []string
}

// clean makes what hosts say of themselves fit for a terminal.
func clean(cards []*card) []*card {
	list := make([]*card, len(cards))
	for i, c := range cards {
		if c == nil {
			continue
		}
		one := *c
		one.Name, one.Iface = text.Line(c.Name, 64), c.Iface
		one.Addrs = nil
		for _, p := range c.Addrs {
			one.Addrs = append(one.Addrs, place{text.Line(p.Addr, 64), text.Line(p.What, 80)})
		}
		list[i] = &one
	}
	return list
}

// uniqueNames are the hosts', told apart where two have the same.
func uniqueNames(cards []*card) []string {
	list := make([]string, len(cards))
	count := map[string]int{}
	for i, c := range cards {
		if c != nil {
			list[i] = c.Name
		}
		count[list[i]]++
	}
	for i := range list {
		if count[list[i]] > 1 || list[i] == "" {
			list[i] = fmt.Sprintf("%s (no. %d)", list[i], i)
		}
	}
	return list
}

// meeting says who has met.
func (j *verdict) meeting() []Line {
	var met, silent []string
	for i, c := range j.cards {
		switch {
		case c == nil:
			silent = append(silent, j.names[i])
		case len(met) < maxNamed:
			met = append(met, fmt.Sprintf("%s (%s)", j.names[i], c.Addrs[0].Addr))
		}
		if c != nil && j.results[i] == nil {
			silent = append(silent, j.names[i])
		}
	}
	text := strings.Join(met, ", ")
	if more := len(j.cards) - len(met); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	lines := []Line{ok("%d hosts met at %s: %s", len(j.cards), j.endpoint, text)}
	if silent != nil {
		lines = append(lines, failure("nothing was heard any more of "+names(silent), "look at what doctor says there"))
	}
	return named("meeting", lines)
}

// find returns what one host has found of another at its first address, nil if it has
// not tried.
func (j *verdict) find(from, to int) *finding {
	if j.results[from] == nil {
		return nil
	}
	for i := range j.results[from].Findings {
		if f := &j.results[from].Findings[i]; f.To == to && f.Place == 0 {
			return f
		}
	}
	return nil
}

// place is the address of a finding.
func (j *verdict) place(f *finding) place {
	if c := j.card(f.To); c != nil && f.Place >= 0 && f.Place < len(c.Addrs) {
		return c.Addrs[f.Place]
	}
	return place{Addr: "?"}
}

// card is a host's, nil if there is none: a host may say any number.
func (j *verdict) card(rank int) *card {
	if rank < 0 || rank >= len(j.cards) {
		return nil
	}
	return j.cards[rank]
}

// each calls f for what every host has found of another that exists.
func (j *verdict) each(f func(from int, found *finding)) {
	for from, r := range j.results {
		if r == nil {
			continue
		}
		for i := range r.Findings {
			if found := &r.Findings[i]; j.card(found.To) != nil && found.To != from {
				f(from, found)
			}
		}
	}
}

// connections says who cannot reach whom, in which direction, and at which address.
func (j *verdict) connections() []Line {
	var faults []fault
	var slowest time.Duration
	var pair string
	tried := 0
	j.each(func(from int, f *finding) {
		tried++
		switch {
		case f.Problem != "":
			if kind := j.kind(from, f); kind != nothingNew {
				faults = append(faults, fault{kind, from, f.To, j.place(f), text.Line(f.Problem, 200)})
			}
		case f.Place == 0 && f.Trip > slowest:
			slowest, pair = f.Trip, j.names[from]+" to "+j.names[f.To]
		}
	})
	var lines []Line
	for _, g := range gather(faults) {
		lines = append(lines, j.unreached(g))
	}
	switch {
	case tried == 0:
	case len(lines) == 0 && slowest > slowTrip:
		lines = []Line{warning(fmt.Sprintf("all hosts reach each other, but a round trip from %s takes %s", pair, round(slowest)), "hosts of one job should be near each other: in one rack, placement group or zone")}
	case len(lines) == 0:
		lines = []Line{ok("all hosts reach each other in both directions; the longest round trip is %s", round(slowest))}
	}
	return named("connections", limited(lines, "more connections that fail"))
}

// kind says what a problem at an address means, seeing what else is known of the pair.
func (j *verdict) kind(from int, f *finding) faultKind {
	if f.Place > 0 {
		if first := j.find(from, f.To); first == nil || first.Problem != "" {
			return nothingNew // nothing reaches it, whatever the interface
		}
		return wrongInterface
	}
	back := j.find(f.To, from)
	switch {
	case back == nil:
		return notReached
	case back.Problem == "":
		return oneWay
	case from < f.To:
		return bothWays
	}
	return nothingNew // said of the other direction
}

// unreached is the line of some faults of one kind.
func (j *verdict) unreached(g group) Line {
	from, to := j.list(g.from), j.list(g.to)
	at := ""
	if len(g.to) == 1 {
		at = " at " + g.place.Addr
	}
	switch g.kind {
	case wrongInterface:
		card := j.cards[g.to[0]]
		works := card.Addrs[0].Addr
		if card.Iface != "" {
			works = card.Iface + ", which has " + works
		}
		return failure(fmt.Sprintf("%s cannot reach %s%s (%s): %s: the wrong interface, or one that is not connected", from, to, at, g.place.What, g.problem),
			fmt.Sprintf("on %s, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface by which it is reached (%s)", to, works)).as("interfaces")
	case oneWay:
		reach := "reaches"
		if len(g.to) > 1 {
			reach = "reach"
		}
		return failure(fmt.Sprintf("%s %s %s, but %s cannot reach %s%s: %s: a firewall that lets one direction through", to, reach, from, from, to, at, g.problem), allow(from, to))
	case bothWays:
		return failure(fmt.Sprintf("%s and %s cannot reach each other%s: %s", from, to, at, g.problem), allow(from, to)+", and the other way round")
	}
	return failure(fmt.Sprintf("%s cannot reach %s%s: %s", from, to, at, g.problem), allow(from, to))
}

// list are names of hosts.
func (j *verdict) list(hosts []int) string {
	var list []string
	for _, i := range hosts {
		list = append(list, j.names[i])
	}
	return names(list)
}

func allow(from, to string) string {
	return fmt.Sprintf("let TCP from %s to %s through on all ports: workers listen on free ones (nft list ruleset, firewalld, the cloud's security group)", from, to)
}

// packets says between whom large packets vanish, and whose MTU differs.
func (j *verdict) packets() []Line {
	var faults []fault
	tried := 0
	j.each(func(from int, f *finding) {
		if f.Problem != "" {
			return
		}
		tried++
		switch at := j.place(f); {
		case f.Passes > 0:
			faults = append(faults, fault{packetsVanish, from, f.To, place{Addr: at.Addr}, strconv.Itoa(f.Passes)})
		case f.Stuck != "":
			faults = append(faults, fault{bytesVanish, from, f.To, place{Addr: at.Addr}, text.Line(f.Stuck, 120)})
		}
	})
	var lines []Line
	for _, g := range gather(faults) {
		lines = append(lines, j.stuck(g))
	}
	if lines == nil && tried > 0 {
		lines = append(lines, ok("1 MiB passes between all hosts"))
	}
	lines = limited(lines, "more pairs of hosts like that")
	if l := j.differing(); l.Text != "" {
		lines = append(lines, l)
	}
	return named("MTU", lines)
}

// stuck is the line of connections that carry nothing large.
func (j *verdict) stuck(g group) Line {
	from, to := j.list(g.from), j.list(g.to)
	if len(g.to) == 1 {
		to += " (" + g.place.Addr + ")"
	}
	if g.kind == bytesVanish {
		return failure(fmt.Sprintf("1 MiB from %s to %s does not arrive within %v (%s), whatever the size of packets", from, to, bulkLimit, g.problem), "look for lost packets: ip -s link, ethtool -S; the cable, the switch port")
	}
	return failure(fmt.Sprintf("packets from %s to %s of more than %s bytes vanish on the way%s: a connection is made, and then hangs", from, to, g.problem, j.mtuOf(g.from[0])),
		fmt.Sprintf("set the MTU on all hosts to what the network carries (ip link set dev NAME mtu %s), let ICMP \"fragmentation needed\" through, or sysctl net.ipv4.tcp_mtu_probing=1", g.problem))
}

func (j *verdict) mtuOf(rank int) string {
	if c := j.cards[rank]; c != nil && c.MTU > 0 {
		return fmt.Sprintf(", but %s has the MTU %d", c.Iface, c.MTU)
	}
	return ""
}

// differing says that hosts have different MTUs.
func (j *verdict) differing() Line {
	hosts := map[int][]string{}
	for i, c := range j.cards {
		if c != nil && c.MTU > 0 {
			hosts[c.MTU] = append(hosts[c.MTU], j.names[i])
		}
	}
	if len(hosts) < 2 {
		return Line{}
	}
	var sorted []int
	for mtu := range hosts {
		sorted = append(sorted, mtu)
	}
	slices.Sort(sorted)
	var parts []string
	for _, mtu := range sorted[:min(len(sorted), maxNamed)] {
		parts = append(parts, fmt.Sprintf("%d on %s", mtu, names(hosts[mtu])))
	}
	return warning("the hosts have different MTUs: "+strings.Join(parts, "; "), "give all the same: UDP and RDMA between them break where TCP only gets slow")
}

// clocks compares the hosts' clocks: those of two with each other, those of more with
// the one in the middle, so that a single wrong one is named.
func (j *verdict) clocks() []Line {
	ahead := j.ahead()
	if len(ahead) < 2 {
		return nil
	}
	var hosts []int
	for i := range ahead {
		hosts = append(hosts, i)
	}
	slices.SortFunc(hosts, func(a, b int) int { return cmp.Or(cmp.Compare(ahead[a].by, ahead[b].by), a-b) })
	middle := hosts[(len(hosts)-1)/2]
	others := "that of " + j.names[middle]
	if len(hosts) > 2 {
		others = "those of most hosts"
	}
	var lines []Line
	var most time.Duration
	for _, i := range hosts {
		// An answer may be as old, or as young, as half the round trip.
		by := ahead[i].by - ahead[middle].by
		apart := max(0, max(by, -by)-ahead[i].unsure-ahead[middle].unsure)
		most = max(most, apart)
		side := "ahead of"
		if by < 0 {
			side = "behind"
		}
		text := fmt.Sprintf("the clock of %s is %s %s %s", j.names[i], round(apart), side, others)
		const fix = "synchronise all hosts' clocks (chronyc tracking, timedatectl set-ntp true)"
		switch {
		case apart > clockFailure:
			lines = append(lines, failure(text+": keep-alives of torch's agents look dead, and certificates may not be valid", fix))
		case apart > clockWarning:
			lines = append(lines, warning(text, fix))
		}
	}
	if lines == nil {
		lines = append(lines, ok("the hosts' clocks are at most %s apart", round(most)))
	}
	return named("clocks", limited(lines, "more clocks"))
}

// An offset is how far a clock is ahead of the first host's.
type offset struct{ by, unsure time.Duration }

// ahead returns those of all hosts of which it is known, by their own words or the
// first's, whichever took less time.
func (j *verdict) ahead() map[int]offset {
	found := map[int]offset{}
	note := func(host int, by time.Duration, trip time.Duration) {
		if old, known := found[host]; !known || trip/2 < old.unsure {
			found[host] = offset{by, max(0, trip/2)}
		}
	}
	j.each(func(from int, f *finding) {
		switch {
		case f.Problem != "":
		case from == 0:
			note(f.To, f.Offset, f.Trip)
		case f.To == 0:
			note(from, -f.Offset, f.Trip)
		}
	})
	if len(found) > 0 {
		found[0] = offset{}
	}
	return found
}

// speed compares what went through, from each host to the next, all at the same time.
func (j *verdict) speed() []Line {
	type link struct {
		text string
		rate float64
	}
	var links []link
	for from, r := range j.results {
		if r == nil || r.Flow == nil || j.card(r.Flow.To) == nil {
			continue
		}
		text := j.names[from] + " to " + j.names[r.Flow.To]
		if what := j.place(&finding{To: r.Flow.To, Place: r.Flow.Place}).What; what != "" {
			text += ", " + what
		}
		links = append(links, link{text, r.Flow.rate()})
	}
	if links == nil {
		return nil
	}
	slices.SortFunc(links, func(a, b link) int {
		switch {
		case a.rate < b.rate:
			return -1
		case a.rate > b.rate:
			return 1
		}
		return strings.Compare(a.text, b.text)
	})
	median := links[len(links)/2].rate
	var lines []Line
	if slow := slices.IndexFunc(links, func(l link) bool { return l.rate >= slowRate }); slow < 0 && len(links) > 2 {
		return named("throughput", []Line{warning(fmt.Sprintf("%.2f to %.2f Gbit/s from each host to the next, the slowest %s", links[0].rate, links[len(links)-1].rate, links[0].text),
			"slow for training: check the links' speed (ethtool NAME), and which interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, --local-addr)")})
	}
	for _, l := range links {
		switch {
		case l.rate < slowRate:
			lines = append(lines, warning(fmt.Sprintf("%s: %.2f Gbit/s", l.text, l.rate), "slow for training: check the link's speed (ethtool NAME), and which interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, --local-addr)"))
		case l.rate < median/2:
			lines = append(lines, warning(fmt.Sprintf("%s: %.1f Gbit/s, where half of the hosts have %.1f or more", l.text, l.rate, median), "the slowest link sets the pace: look at its cable, port and interface"))
		}
	}
	if len(lines) == 0 {
		lines = append(lines, ok("%.1f Gbit/s at least, by TCP from each host to the next (%s)", links[0].rate, links[0].text))
	}
	return named("throughput", limited(lines, "more slow links"))
}

// named names lines after a check where they have no name.
func named(check string, lines []Line) []Line {
	for i := range lines {
		if lines[i].Check == "" {
			lines[i].Check = check
		}
	}
	return lines
}

// limited keeps maxNamed lines, failures first, and says how many more there are.
func limited(lines []Line, what string) []Line {
	if len(lines) <= maxNamed {
		return lines
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return b.Status.rank() - a.Status.rank() })
	more := len(lines) - maxNamed
	worst := lines[maxNamed].Status
	return append(lines[:maxNamed:maxNamed], Line{Status: worst, Text: fmt.Sprintf("and %d %s", more, what), Advice: "--json on a smaller --nnodes shows them one by one"})
}

// names lists some names.
func names(list []string) string {
	if len(list) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
	}
	return strings.Join(list, ", ")
}
