package accounts

import (
	"cmp"
	"slices"
	"strings"
)

// An Account is what a worker's time goes to.
type Account string

// The accounts.
const (
	Agent      Account = "agent"        // before the first rendezvous and after the last attempt
	Requeue    Account = "between_runs" // with the same run ID
	Waiting    Account = "waiting_for_hosts"
	Rendezvous Account = "rendezvous" // the hosts exchange ranks
	Start      Account = "start_and_imports"
	FirstStep  Account = "first_step"
	Steps      Account = "steps"
	Running    Account = "running" // of a worker whose steps are not known: all since its start
	Slow       Account = "waiting_for_a_slow_rank"
	Lost       Account = "work_lost" // since the last step before a failure
	Hang       Account = "hang_until_noticed"
	Autopsy    Account = "autopsy"
	Stop       Account = "stop"
	Restart    Account = "restart"             // reports, decisions and back-off between two attempts
	Others     Account = "ended_before_others" // the worker has succeeded
)

// All are the accounts in the order in which they are shown.
var All = [...]Account{Agent, Requeue, Waiting, Rendezvous, Start, FirstStep, Steps, Running, Slow, Lost, Hang, Autopsy,
	Stop, Restart, Others}

// Words is the account's name for people.
func (a Account) Words() string { return strings.ReplaceAll(string(a), "_", " ") }

// Works reports whether the workers do their work.
func (a Account) Works() bool { return a == Steps || a == Running || a == Slow }

// A Mark says what the time of workers goes to from a moment on.
type Mark struct {
	At        int64   `json:"at"` // milliseconds since 1970
	Account   Account `json:"account"`
	LocalRank *int    `json:"local_rank,omitempty"` // whose time; nil: that of all workers of the host
	Attempt   string  `json:"attempt,omitempty"`    // the name of the one that begins
	Cause     string  `json:"cause,omitempty"`      // why work has ended; which rank is slow
}

// Spent is time by account, in milliseconds.
type Spent map[Account]int64

// Sum is the time of all accounts.
func (s Spent) Sum() (sum int64) {
	for _, ms := range s {
		sum += ms
	}
	return sum
}

func (s Spent) add(other Spent) {
	for a, ms := range other {
		s[a] += ms
	}
}

// A Price is what the begin of a run, or an interruption of the work, has cost the workers of all
// hosts: until those of the next attempt work, or have ended.
type Price struct {
	Run     int    `json:"run"`               // as HostRun has it
	Attempt string `json:"attempt,omitempty"` // that was interrupted; "" at the begin of a run
	Cause   string `json:"cause,omitempty"`   // of the failure; "" if hosts came or went
	Workers int    `json:"workers"`
	Spent   Spent  `json:"spent_ms"` // of all of them together
}

// addPrice adds a price to that of the same interruption.
func addPrice(prices []Price, p *Price) []Price {
	i := slices.IndexFunc(prices, func(known Price) bool { return known.Run == p.Run && known.Attempt == p.Attempt })
	if i < 0 {
		return append(prices, *p)
	}
	prices[i].Spent.add(p.Spent)
	prices[i].Workers += p.Workers
	prices[i].Cause = cmp.Or(prices[i].Cause, p.Cause)
	return prices
}

// A Record is what one host has recorded.
type Record struct {
	Workers int
	Marks   []Mark
}

// Sum returns the time of each worker from start to end, and what the begin and each interruption cost.
func (r *Record) Sum(start, end int64) (workers []Spent, prices []Price) {
	for i := range r.Workers {
		spent, own, attempt := Spent{}, []Price(nil), ""
		price := &Price{Spent: Spent{}}
		marks := r.of(i, start, end)
		for j, m := range marks[:len(marks)-1] {
			ms := marks[j+1].At - m.At
			spent[m.Account] += ms
			attempt = cmp.Or(m.Attempt, attempt)
			switch {
			case ms == 0 && marks[j+1].Account == Start: // it was not yet work
			case m.Account.Works() || m.Account == Others || m.Account == Agent && attempt != "":
				if price != nil {
					own, price = addPrice(own, price), nil
				}
			case price == nil && m.Account != Agent:
				price = &Price{Attempt: attempt, Spent: Spent{}}
			case price != nil && price.Attempt != attempt && // it fails before it works
				slices.Contains([]Account{Lost, Hang, Autopsy, Stop, Restart}, m.Account):
				own, price = addPrice(own, price), &Price{Attempt: attempt, Spent: Spent{}}
			}
			if price != nil {
				price.Spent[m.Account] += ms
				price.Cause = cmp.Or(price.Cause, m.Cause)
			}
		}
		if price != nil {
			own = addPrice(own, price)
		}
		for k := range own {
			own[k].Workers = 1
			prices = addPrice(prices, &own[k])
		}
		workers = append(workers, spent)
	}
	return workers, prices
}

// of returns the marks of a worker from start to end, by their time: the last one is the end.
func (r *Record) of(localRank int, start, end int64) []Mark {
	list := []Mark{{At: start, Account: Agent}}
	for _, m := range r.Marks {
		if m.LocalRank != nil && *m.LocalRank != localRank {
			continue
		}
		m.At = min(max(m.At, start), end)
		for list[len(list)-1].At > m.At { // what was said of the time since; or the clock was set back
			old := list[len(list)-1]
			if m.Attempt, list = cmp.Or(m.Attempt, old.Attempt), list[:len(list)-1]; old.Account != Slow {
				m.Cause = cmp.Or(m.Cause, old.Cause)
			}
		}
		list = append(list, m)
	}
	return append(list, Mark{At: end})
}
