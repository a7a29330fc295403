// Package parallel calls a function for many things at the same time.
package parallel

import "sync"

// Map calls f(0) to f(n-1), at most width at a time, and returns what they return, in order.
func Map[T any](n, width int, f func(i int) T) []T {
	out := make([]T, n)
	slots := make(chan struct{}, width)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			out[i] = f(i)
			<-slots
		})
	}
	all.Wait()
	return out
}
