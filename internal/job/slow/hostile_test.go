package slow

import (
	"math"
	"testing"
)

// Another agent says what it likes: nothing of it panics or does not end.
func TestHostileArrivals(t *testing.T) {
	numbers := []int64{math.MinInt64, math.MinInt64 + 3, -1, 0, 1, 5, math.MaxInt64 - 3, math.MaxInt64}
	at := [][]int64{nil, {0}, {1, 2, 3, 4, 5, 6, 7}, {math.MinInt64, math.MaxInt64, -1, 0, 1}}
	for _, first := range numbers {
		for _, period := range numbers {
			for _, times := range at {
				var w Watch
				for range 2 {
					w.Add([]Arrivals{
						{Rank: 0, First: first, Period: int(period), At: times}, {Rank: 1, First: 0, Period: 1, At: []int64{1, 2, 3, 4, 5}},
						{Rank: 2, First: first, Period: 1, At: times},
					})
				}
			}
		}
	}
}
