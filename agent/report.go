package agent

import (
	"github.com/muster-run/muster/failure"
)

// saysNothing says that not all that a worker wrote may have been here when its failure was explained.
func saysNothing(f *failure.ProcessFailure) bool {
	return f.ExitCode > 0 && f.Traceback == "" && f.ErrorFile == "" && len(f.LastLines) == 0
}

// isOwn reports whether a failure is that of the worker that had a local rank here.
func (at *attempt) isOwn(f *failure.ProcessFailure, localRank int) bool {
	return f.LocalRank == localRank && f.Rank == at.rank(localRank)
}

// onlyLostPeers reports whether the failures are all the consequence of another
// worker's.
func onlyLostPeers(failures []*failure.ProcessFailure) bool {
	root := failure.NewReport(failure.ReportConfig{}, failures).Root()
	return root != nil && root.LostPeer()
}
