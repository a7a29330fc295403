package failure_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-run/muster/failure"
)

// Between a worker's death and the report lies little but this.
func BenchmarkNew(b *testing.B) {
	tail := []byte(strings.Repeat("step 12345: loss 0.123456 lr 0.001 tokens/s 123456\n", 1250) + simple + "\n")
	b.SetBytes(int64(len(tail)))
	for b.Loop() {
		failure.New(failure.Observation{ExitCode: 1, Ended: noon, Evidence: failure.Evidence{StderrTail: tail}})
	}
}

// lostPeers are n ranks whose communicators were aborted while each waited in a work of its own, or all in the same,
// and that name a rank about which nothing is known.
func lostPeers(n int, same bool) (all []*failure.ProcessFailure) {
	for r := range n {
		seq := 7
		if !same {
			seq += r
		}
		all = append(all, failure.New(failure.Observation{Rank: r, ExitCode: -6, Ended: noon, Evidence: failure.Evidence{StderrTail: fmt.Appendf(nil,
			"[rank%d]:[E1128 10:00:00] [PG ID 0 PG GUID 0(default_pg) Rank %d] Watchdog caught collective operation timeout: "+
				"WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"+
				"[rank%d]: Rank %d failed to pass monitoredBarrier\n", r, r, seq, r, n)}}))
	}
	return all
}

func BenchmarkBlame(b *testing.B) {
	for _, same := range []bool{true, false} {
		all := lostPeers(2048, same)
		b.Run(fmt.Sprintf("same=%v", same), func(b *testing.B) {
			for b.Loop() {
				failure.NewReport(failure.ReportConfig{}, all)
			}
		})
	}
}

// A report of many lost peers takes no time that grows with their square: 50 s for these.
func TestBlameManyPeers(t *testing.T) {
	all := lostPeers(1<<14, true)
	began := time.Now()
	r := failure.NewReport(failure.ReportConfig{}, all)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d failures took %v", len(all), took)
	}
	if !strings.HasPrefix(r.Root().Hint, "all ranks waited in the same work") {
		t.Errorf("hint %q", r.Root().Hint)
	}
}
