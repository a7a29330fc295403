package failure_test

import (
	"fmt"
	"io"

	"github.com/muster-run/muster/failure"
)

// What the file report.json of a job says.
func ExampleReport() {
	text := []byte(`{"version": 1, "title": "train.py", "failures": [
		{"kind": "failed", "root": true, "rank": 1, "local_rank": 1, "host": "gpu7", "exit_code": 3, "cause": "ValueError: boom"}]}`)
	var report *failure.Report
	report, err := failure.ParseReport(text)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report.Root())
	fmt.Println(report.Root().ExitStatus(), report.WriteJSON(io.Discard)) // WriteText is for people
	// Output:
	// rank 1 (local_rank 1) on host gpu7: ValueError: boom
	// 3 <nil>
}
