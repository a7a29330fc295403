package jobs

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"testing"

	"github.com/muster-run/muster/internal/job/accounts"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// A job is started twice with one run ID; its first run restarts. All the time of its workers is accounted
// for, and what the restart and the second start cost.
func TestReportTime(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		job := exec.Command("muster", "run", "--no-python", "--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=job7", "--log-dir="+dir,
			"sh", "-c", `[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 3`)
		if out, err := job.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var r accounts.Report
	if err := json.Unmarshal([]byte(muster(t, "report", "--time", "--json", dir)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 2 || r.Hosts != 1 || r.Workers != 2 || r.RunID != "job7" {
		t.Fatalf("%+v", r)
	}
	first, err := jobfile.Read(r.Runs[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	last, err := jobfile.Read(r.Runs[1].Dir)
	if err != nil {
		t.Fatal(err)
	}
	wall := last.End.Ended.UnixMilli() - first.Begin.Started.UnixMilli()
	for i := range 2 {
		if sum := r.Runs[0].Workers[i].Sum() + r.Runs[1].Workers[i].Sum(); sum != wall {
			t.Errorf("worker %d: %d ms, of %d ms of wall clock", i, sum, wall)
		}
	}
	if between := last.Begin.Started.UnixMilli() - first.End.Ended.UnixMilli(); r.Spent[accounts.Requeue] != 2*between || r.Spent.Sum() != 2*wall {
		t.Errorf("%+v; %d ms are between the runs, and %d ms all", r.Spent, between, wall)
	}
	var interruptions []string
	for _, p := range r.Prices {
		interruptions = append(interruptions, p.Attempt+p.Cause)
	}
	text := muster(t, "report", "--time", dir)
	for _, want := range []string{
		`^sh: 2 workers on 1 host in 2 runs, 0:00:\d\d\.\d{3} of wall clock\n`, `\n  between runs +0:00:0\d\.\d{3} +\d+\.\d\d%\n`,
		`\n    begin of run 1 +\d.*s: .* of start and imports`, `\n    attempt_0 of run 2  \d.*s: .*\n +rank 1 \(.*exit code 3\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in:\n%s", want, text)
		}
	}
	if len(interruptions) != 4 || !regexp.MustCompile(`^attempt_0rank 1 .*exit code 3$`).MatchString(interruptions[1]) {
		t.Errorf("the prices are of %q", interruptions)
	}
}
