package simulate

import "sync"

// Seeds runs n seeds, two at a time, each with its configuration. It tells of those that fail, one
// after the other, and returns what all were like in sum.
func Seeds(from, n uint64, config func(seed uint64) Config, failed func(seed uint64, err error)) Result {
	next := make(chan uint64)
	var wg sync.WaitGroup
	var mu sync.Mutex // guards sum, and calls of failed
	var sum Result
	for range 2 {
		wg.Go(func() {
			for seed := range next {
				r, err := Run(config(seed))
				mu.Lock()
				if err != nil {
					failed(seed, err)
				}
				if r != nil {
					sum.add(r)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		next <- from + i
	}
	close(next)
	wg.Wait()
	return sum
}

func (sum *Result) add(r *Result) {
	sum.Events += r.Events
	sum.Rounds += r.Rounds
	sum.Faults += r.Faults
	sum.Nodes += r.Nodes
	sum.Lost += r.Lost
	sum.TimedOut += r.TimedOut
	sum.Took += r.Took
	sum.Memberships += r.Memberships
	sum.Late += r.Late
	sum.GaveUp += r.GaveUp
}
