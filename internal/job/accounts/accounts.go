package accounts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// An Account is what a worker's time goes to.
type Account uint8

// The accounts, in the order in which they are shown.
const (
	Agent      Account = iota // before the first rendezvous and after the last attempt
	Requeue                   // between two runs with the same run ID
	Waiting                   // for the hosts of a round
	Rendezvous                // the exchange of ranks
	Start                     // of the processes, and the imports up to the first collective
	FirstStep                 // up to the end of the first step, which compiles
	Steps
	Running // of a job whose steps are not known: all from the start of the processes
	Slow    // waiting for a slow rank
	Lost    // work since the last step that counts
	Hang    // until it was noticed
	Autopsy
	Stop
	Restart // reports, decisions and back-off between two attempts
	Others  // the worker has ended, and others still run
	number
)

var names = [number]string{"agent", "between_runs", "waiting_for_hosts", "rendezvous", "start_and_imports", "first_step",
	"steps", "running", "waiting_for_a_slow_rank", "work_lost", "hang_until_noticed", "autopsy", "stop", "restart",
	"ended_before_others"}

// String is the account's name in files and metrics; Words is for people.
func (a Account) String() string { return names[min(a, number-1)] }

// Words is the name for people.
func (a Account) Words() string { return strings.ReplaceAll(a.String(), "_", " ") }

// All returns all accounts.
func All() (all []Account) {
	for a := range number {
		all = append(all, a)
	}
	return all
}

// MarshalText returns the name.
func (a Account) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads a name.
func (a *Account) UnmarshalText(name []byte) error {
	i := slices.Index(names[:], string(name))
	if i < 0 {
		return fmt.Errorf("no account %.40q", name)
	}
	*a = Account(i)
	return nil
}

// Works reports whether the workers do their work, as far as that is known.
func (a Account) Works() bool { return a == Steps || a == Running || a == Slow }

// A Mark says what the time of workers goes to from a moment on.
type Mark struct {
	At      int64   `json:"at"` // milliseconds since 1970
	Account Account `json:"account"`
	// LocalRank is the worker; nil for all of the host.
	LocalRank *int `json:"local_rank,omitempty"`
	// Attempt is the name of the attempt that begins.
	Attempt string `json:"attempt,omitempty"`
	// Cause is why the work has ended.
	Cause string `json:"cause,omitempty"`
}

// Spent is time by account, in milliseconds. As JSON it has those that are not zero.
type Spent [number]int64

// Sum is the time of all accounts.
func (s *Spent) Sum() (sum int64) {
	for _, ms := range s {
		sum += ms
	}
	return sum
}

func (s *Spent) add(other *Spent) {
	for a := range s {
		s[a] += other[a]
	}
}

// MarshalJSON writes the accounts that have time.
func (s Spent) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for a, ms := range s {
		if ms != 0 {
			out = fmt.Appendf(out, "%q:%d,", names[a], ms)
		}
	}
	return append(out[:max(1, len(out)-1)], '}'), nil // without the last comma
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Spent) UnmarshalJSON(text []byte) error {
	var by map[Account]int64
	err := json.Unmarshal(text, &by)
	for a, ms := range by {
		s[a] = ms
	}
	return err
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

// priced adds to the price of an attempt.
func priced(prices []Price, p *Price) []Price {
	i := slices.IndexFunc(prices, func(known Price) bool { return known.Run == p.Run && known.Attempt == p.Attempt })
	if i < 0 {
		return append(prices, *p)
	}
	prices[i].Spent.add(&p.Spent)
	prices[i].Workers += p.Workers
	prices[i].Cause = cmp.Or(prices[i].Cause, p.Cause)
	return prices
}

// A Record is what one host has recorded.
type Record struct {
	Workers int
	Marks   []Mark
}

// A segment is a time of a worker with one account, up to the next one.
type segment struct {
	at      int64
	account Account
	mark    *Mark // that began it
}

// Sum returns the time of each worker from start to end, and what its begin and each interruption cost.
func (r *Record) Sum(start, end int64) (workers []Spent, prices []Price) {
	workers = make([]Spent, r.Workers)
	for i := range workers {
		own, attempt := []Price(nil), ""
		price := &Price{}
		segments := r.segments(i, start, end)
		for j, s := range segments[:len(segments)-1] {
			ms := segments[j+1].at - s.at
			workers[i][s.account] += ms
			attempt = cmp.Or(s.mark.Attempt, attempt)
			switch {
			case s.account.Works() || s.account == Others || s.account == Agent && attempt != "":
				if price != nil {
					own, price = priced(own, price), nil
				}
			case price == nil && s.account != Agent:
				price = &Price{Attempt: attempt}
			}
			if price != nil {
				price.Spent[s.account] += ms
				price.Cause = cmp.Or(price.Cause, s.mark.Cause)
			}
		}
		if price != nil {
			own = priced(own, price)
		}
		for k := range own {
			own[k].Workers = 1
			prices = priced(prices, &own[k])
		}
	}
	return workers, prices
}

// segments returns the times of a worker from start to end; the last one is empty.
func (r *Record) segments(localRank int, start, end int64) []segment {
	list := []segment{{start, Agent, &Mark{}}}
	for i := range r.Marks {
		m := &r.Marks[i]
		if m.LocalRank != nil && *m.LocalRank != localRank {
			continue
		}
		at := min(max(m.At, start), end)
		for len(list) > 1 && list[len(list)-1].at > at { // it was of another account since then
			list = list[:len(list)-1]
		}
		list = append(list, segment{at, m.Account, m})
	}
	return append(list, segment{at: end})
}
