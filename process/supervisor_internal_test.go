package process

import (
	"testing"
	"testing/synctest"
)

// A second Close returns no earlier than the first.
func TestCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewSupervisor(SupervisorConfig{NoCgroup: true})
		if err != nil {
			t.Fatal(err)
		}
		busy, closed := make(chan struct{}), make(chan error, 2)
		s.forks <- func() { <-busy }
		for range 2 {
			go func() { closed <- s.Close() }()
		}
		synctest.Wait()
		if len(closed) > 0 {
			t.Error("Close has returned beside another that goes on")
		}
		close(busy)
		for range 2 {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}
	})
}
