package doctor_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/cmd/muster/internal/doctor"
)

// mesh are n hosts, a, b, c and so on, that find nothing wrong with each other.
func mesh(n int) (hosts []*doctor.HostInfo, results []*doctor.Result) {
	for i := range n {
		name := string(rune('a' + i))
		hosts = append(hosts, &doctor.HostInfo{Name: name, Port: 1, Iface: "eth0", MTU: 1500, Addrs: []doctor.Place{{Addr: "10.0.0." + string(rune('1'+i))}}})
		r := &doctor.Result{}
		for _, to := range doctor.Targets(i, n) {
			r.Findings = append(r.Findings, doctor.Finding{To: to, Trip: 100 * time.Microsecond})
		}
		results = append(results, r)
	}
	return hosts, results
}

// at is what one host has found of another.
func at(results []*doctor.Result, from, to int) *doctor.Finding {
	for i := range results[from].Findings {
		if f := &results[from].Findings[i]; f.To == to {
			return f
		}
	}
	return nil
}

func TestJudge(t *testing.T) {
	const silence = "no answer (packets vanish)"
	for _, tt := range []struct {
		name   string
		hosts  int
		broken func(hosts []*doctor.HostInfo, results []*doctor.Result)
		want   []string // what is not ok
	}{
		{"well", 3, func([]*doctor.HostInfo, []*doctor.Result) {}, nil},
		{"one direction", 3, func(_ []*doctor.HostInfo, r []*doctor.Result) { at(r, 0, 2).Problem = silence }, []string{
			"failure connections: c reaches a, but a cannot reach c at 10.0.0.3: no answer (packets vanish): a firewall that lets one direction through"}},
		{"both directions are one line", 3, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 2).Problem, at(r, 2, 0).Problem = silence, silence
		}, []string{"failure connections: a and c cannot reach each other at 10.0.0.3: no answer (packets vanish)"}},
		{"the other says nothing", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) { at(r, 0, 1).Problem, r[1] = silence, nil }, []string{
			"failure meeting: the meeting has lost contact with b", "failure connections: a cannot reach b at 10.0.0.2: no answer (packets vanish)"}},
		{"one host behind a firewall", 12, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			for i := 1; i < 12; i++ {
				at(r, i, 0).Problem = silence
			}
		}, []string{"failure connections: a reaches b, c, d, e, f, g, h, i and 3 more, but b, c, d, e, f, g, h, i and 3 more cannot reach a at 10.0.0.1: no answer (packets vanish): a firewall that lets one direction through"}},
		{"one host may not go out", 4, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			for i := range 3 {
				at(r, 3, i).Problem = silence
			}
		}, []string{"failure connections: a, b, c reach d, but d cannot reach a, b, c: no answer (packets vanish): a firewall that lets one direction through"}},
		{"one host cut off", 4, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			for i := range 3 {
				at(r, 3, i).Problem, at(r, i, 3).Problem = silence, silence
			}
		}, []string{"failure connections: a, b, c and d cannot reach each other at 10.0.0.4: no answer (packets vanish)"}},
		{"behind a tunnel", 4, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			for i := range 3 {
				at(r, i, 3).Stuck, at(r, i, 3).Passes = "timeout", 1420
			}
		}, []string{"failure MTU: packets from a, b, c to d (10.0.0.4) of more than 1420 bytes vanish on the way, but eth0…"}},
		{"wrong interface", 2, func(c []*doctor.HostInfo, r []*doctor.Result) {
			c[1].Addrs = append(c[1].Addrs, doctor.Place{Addr: "172.17.0.1", What: "GLOO_SOCKET_IFNAME=docker0"})
			r[0].Findings = append(r[0].Findings, doctor.Finding{To: 1, Place: 1, Problem: "refused"})
		}, []string{"failure interfaces: a cannot reach b at 172.17.0.1 (GLOO_SOCKET_IFNAME=docker0): refused: the wrong interface, or one that is not connected"}},
		{"no interface is to blame where nothing works", 2, func(c []*doctor.HostInfo, r []*doctor.Result) {
			c[1].Addrs = append(c[1].Addrs, doctor.Place{Addr: "10.1.0.1", What: "GLOO_SOCKET_IFNAME=eth1"})
			at(r, 0, 1).Problem = silence
			r[0].Findings = append(r[0].Findings, doctor.Finding{To: 1, Place: 1, Problem: silence})
		}, []string{"failure connections: b reaches a, but a…"}},
		{"large packets vanish", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 1).Stuck, at(r, 0, 1).Passes = "timeout", 1450
		}, []string{
			"failure MTU: packets from a to b (10.0.0.2) of more than 1450 bytes vanish on the way, but eth0 has the MTU 1500: a connection is made, and then hangs"}},
		{"nothing passes", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) { at(r, 0, 1).Stuck = "timeout" }, []string{
			"failure MTU: 1 MiB from a to b (10.0.0.2) does not arrive within 3s (timeout), in packets of any size"}},
		{"different MTUs", 3, func(c []*doctor.HostInfo, _ []*doctor.Result) { c[1].MTU = 9000 }, []string{"warning MTU: the hosts have different MTUs: 1500 on a, c; 9000 on b"}},
		{"far apart", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) { at(r, 1, 0).Trip = 40 * time.Millisecond }, []string{
			"warning connections: all hosts reach each other, but a round trip from b to a takes 40ms"}},
		{"clock", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 1).Offset, at(r, 1, 0).Offset = -time.Second, time.Second
		}, []string{"warning clocks: the clock of a is 1s ahead of that of b"}},
		{"one clock of four", 4, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 2).Offset, at(r, 2, 0).Offset = time.Minute, -time.Minute
		}, []string{"failure clocks: the clock of c is 1m0s ahead of those of most hosts: keep-alives…"}},
		{"the first's clock", 4, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			for i := 1; i < 4; i++ {
				at(r, 0, i).Offset, at(r, i, 0).Offset = 2*time.Second, -2*time.Second
			}
		}, []string{"warning clocks: the clock of a is 2s behind those of most hosts"}},
		{"clock far off", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 1).Offset, at(r, 1, 0).Offset = time.Hour, -time.Hour
		}, []string{
			"failure clocks: the clock of b is 1h0m0s ahead of that of a: keep-alives…"}},
		{"half a second is well", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 1).Offset, at(r, 1, 0).Offset = 500*time.Millisecond, -500*time.Millisecond
		}, nil},
		{"a slow answer is not a clock", 2, func(_ []*doctor.HostInfo, r []*doctor.Result) {
			at(r, 0, 1).Offset, at(r, 0, 1).Trip = 501*time.Millisecond, 4*time.Millisecond
			at(r, 1, 0).Offset, at(r, 1, 0).Trip = -501*time.Millisecond, 4*time.Millisecond
		}, nil},
		{"equal names", 2, func(c []*doctor.HostInfo, r []*doctor.Result) { c[1].Name, at(r, 0, 1).Problem = "a", silence }, []string{
			"failure connections: a (no. 1) reaches a (no. 0), but a (no. 0) cannot reach a (no. 1)…"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			hosts, results := mesh(tt.hosts)
			tt.broken(hosts, results)
			var got []string
			for _, l := range doctor.Judge("a:1", hosts, results) {
				if l.Status == doctor.OK {
					continue
				}
				got = append(got, string(l.Status)+" "+l.Check+": "+l.Text)
				if l.Advice == "" {
					t.Errorf("%s: no advice", l.Text)
				}
			}
			same(t, got, tt.want)
		})
	}
}

// In a large job all are tried from the first and from their neighbours.
func TestTargets(t *testing.T) {
	for _, size := range []int{2, 3, 32, 33, 1000} {
		tried := map[int]int{}
		for rank := range size {
			list := doctor.Targets(rank, size)
			if most := max(32, 9); rank > 0 && len(list) > most {
				t.Errorf("%d hosts: host %d tries %d", size, rank, len(list))
			}
			seen := map[int]bool{}
			for _, to := range list {
				if to == rank || to < 0 || to >= size || seen[to] {
					t.Fatalf("%d hosts: host %d tries %v", size, rank, list)
				}
				seen[to] = true
				tried[to]++
			}
			if rank > 0 && !seen[0] || !seen[(rank+1)%size] {
				t.Errorf("%d hosts: host %d tries %v, neither the first nor the next", size, rank, list)
			}
		}
		for to := range size {
			if tried[to] < min(size-1, 8) {
				t.Errorf("%d hosts: %d try host %d", size, tried[to], to)
			}
		}
	}
}

// What other hosts say may be anything.
func FuzzJudge(f *testing.F) {
	hosts, results := mesh(3)
	at(results, 0, 1).Problem = "refused"
	at(results, 1, 2).Stuck = "timeout"
	a, _ := json.Marshal(hosts)
	b, _ := json.Marshal(results)
	f.Add(a, b)
	f.Add([]byte(`[{"addrs":[{}]},null]`), []byte(`[{"findings":[{"to":-1},{"to":7},{"to":1,"place":9,"problem":"x"}]}]`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var hosts []*doctor.HostInfo
		var results []*doctor.Result
		if json.Unmarshal(a, &hosts) != nil || json.Unmarshal(b, &results) != nil || len(hosts) > 64 {
			return
		}
		for _, c := range hosts {
			if c != nil && len(c.Addrs) == 0 {
				return // refused before
			}
		}
		for len(results) < len(hosts) {
			results = append(results, nil)
		}
		for _, l := range doctor.Judge("a:1", hosts, results[:len(hosts)]) {
			if l.Check == "" || l.Text == "" || strings.ContainsAny(l.Text, "\x1b\n") {
				t.Errorf("got %+v", l)
			}
		}
	})
}
