package postmortem_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/cmd/muster/internal/postmortem"
	"github.com/muster-run/muster/internal/job/jobfile"
)

// at is a moment as time.jsonl has it, milliseconds after the job's first.
func at(ms int64) time.Time { return time.UnixMilli(1_795_268_876_000 + ms).UTC() }

// ran makes what an agent leaves of a run: job.jsonl, and time.jsonl if there are marks.
func ran(dir string, began, ended time.Time, marks ...string) map[string]string {
	files := map[string]string{
		dir + "/attempt_0/0/": "",
		dir + "/" + jobfile.Name: fmt.Sprintf(`{"version": 1, "run_id": "job", "title": "train.py", "host": "h", "pid": 1, "started": %q, "max_restarts": 3, "max_nodes": 1, "locked": true}`+
			"\n"+`{"outcome": "failed", "cause": "c", "restarts": 0, "ended": %q}`+"\n", began.Format(time.RFC3339Nano), ended.Format(time.RFC3339Nano)),
	}
	if marks != nil {
		files[dir+"/time.jsonl"] = recorded(marks...)
	}
	return files
}

// found finds the runs in a --log-dir.
func found(t *testing.T, root string) []postmortem.Dir {
	t.Helper()
	runs, _, err := postmortem.Find(root)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// All runs with the newest one's run ID count, each from the agent's begin to its end; what is not known of one is a note,
// and the time between two is theirs, too.
func TestTime(t *testing.T) {
	files := ran("job_11111111", at(0), at(10_000), "1795268876500 attempt_0", "1795268878500 running", "1795268886000 agent")
	for _, more := range []map[string]string{
		ran("job_22222222", at(20_000), at(30_000), "1795268896000 attempt_0", "1795268897000 running"),
		{"job_33333333/attempt_0/0/": ""}, // torchrun's
		{"job_44444444/attempt_0/0/": "", "job_44444444/time.jsonl": "boo"},
		ran("other_55555555", at(0), at(90_000), "1795268876000 running"),
	} {
		for name, text := range more {
			files[name] = text
		}
	}
	root := tree(t, files)
	for i, name := range []string{"other_55555555", "job_44444444", "job_33333333", "job_11111111", "job_22222222"} { // the last one is the newest
		when := at(int64(i))
		if err := os.Chtimes(filepath.Join(root, name, "attempt_0"), when, when); err != nil {
			t.Fatal(err)
		}
	}
	r, err := postmortem.Time(found(t, root))
	if err != nil {
		t.Fatal(err)
	}
	if r.RunID != "job" || r.Title != "train.py" || !r.Started.Equal(at(0)) || !r.Ended.Equal(at(30_000)) || r.Hosts != 1 || len(r.Runs) != 2 {
		t.Errorf("%+v", r)
	}
	spent := map[string]int64{}
	for account, ms := range r.Spent {
		if ms != 0 {
			spent[string(account)] = ms
		}
	}
	want := map[string]int64{ // of two workers
		"agent": 2 * 500, "start_and_imports": 2 * (2000 + 1000), "running": 2 * (7500 + 9000), "between_runs": 2 * 10_000,
	}
	if diff := cmp.Diff(want, spent); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	problems := []string{
		filepath.Join(root, "job_33333333/time.jsonl") + ": it is not there: the run is torchrun's, or of a release without it",
		filepath.Join(root, "job_44444444/time.jsonl") + ": the first line is none that an agent writes: invalid character 'b' looking for beginning of value",
	}
	if diff := cmp.Diff(problems, r.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if _, err := postmortem.Time(found(t, filepath.Join(root, "job_33333333"))); err == nil || !strings.HasSuffix(err.Error(), problems[0]) {
		t.Errorf("of a run of torchrun's: %v", err)
	}
}

// A run whose agent was killed counts until its last mark, whatever its files say, and the next one has the time since.
func TestTimeOfKilled(t *testing.T) {
	killed := ran("job_11111111", at(0), at(0), "1795268876500 attempt_0", "1795268878500 running", "1795268886000 running")
	name := "job_11111111/" + jobfile.Name
	killed[name], _, _ = strings.Cut(killed[name], "\n")
	killed[name] += "\n"
	for name, text := range ran("job_22222222", at(20_000), at(30_000), "1795268896000 attempt_0", "1795268897000 running", "1795268906000 agent") {
		killed[name] = text
	}
	root := tree(t, killed)
	for i, name := range []string{"job_11111111", "job_22222222"} {
		for _, file := range []string{"attempt_0", "attempt_0/0"} {
			if when := at(int64(i)); os.Chtimes(filepath.Join(root, name, file), when, when) != nil {
				t.Fatal(name)
			}
		}
	}
	r, err := postmortem.Time(found(t, root))
	if err != nil {
		t.Fatal(err)
	}
	if r.Spent["running"] != 2*(7_500+9_000) || r.Spent["between_runs"] != 2*10_000 || r.Spent.Sum() != 2*30_000 {
		t.Errorf("%v", r.Spent)
	}
	problem := filepath.Join(root, "job_11111111/time.jsonl") + ": the agent has not written its end: its run counts until its last mark, of which there is one a minute"
	if diff := cmp.Diff([]string{problem}, r.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// A job that runs has had its time until now.
func TestTimeOfARunningJob(t *testing.T) {
	began := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	dir := tree(t, map[string]string{"attempt_0/0/": "", "time.jsonl": recorded(fmt.Sprint(began.UnixMilli(), " attempt_0"), fmt.Sprint(began.UnixMilli()+1000, " running"))})
	w, err := jobfile.Create(dir, jobfile.Begin{RunID: "job", Started: began, PID: 42})
	if err != nil {
		t.Fatal(err)
	}
	r, err := postmortem.Time(found(t, dir))
	if err != nil || r.Ended.Before(began.Add(time.Hour)) || r.Spent["running"] < 2*3599_000 {
		t.Errorf("%v, %+v", err, r)
	}
	end(t, w, jobfile.Succeeded, "")
}

// Whatever clocks and files say, the report comes, its sum is the wall clock, and its text has no control characters.
func TestTimeOfOddRecords(t *testing.T) {
	odd := ran("job_11111111", at(0), at(10_000), "1795268877000 attempt_0", "1795268878000 running", "1795268879000 stop")
	odd["job_11111111/time.jsonl"] = strings.Replace(odd["job_11111111/time.jsonl"], "attempt_0", `attempt_\u001b[2J\n`+strings.Repeat("x", 1000), 1)
	for _, tt := range []struct {
		name  string
		files map[string]string
		wall  time.Duration
	}{
		{"the clock was set back while it ran", ran("job_11111111", at(10_000), at(4_000), "1795268887000 attempt_0", "1795268879000 running"), 0},
		{"and was for a while", ran("job_11111111", at(0), at(10_000), "1795268877000 attempt_0", "1795268872000 running", "1795268880000 stop"), 10 * time.Second},
		{"marks are of another century", ran("job_11111111", at(0), at(10_000), "9223372036854775807 attempt_0", "-9223372036854775808 running"), 10 * time.Second},
		{"an attempt has an odd name", odd, 10 * time.Second},
		{"the agent has not said when it began", map[string]string{"job_11111111/attempt_0/0/": "",
			"job_11111111/" + jobfile.Name: `{"version": 1, "locked": true}` + "\n" + `{"outcome": "failed", "ended": "` + at(10_000).Format(time.RFC3339) + `"}` + "\n",
			"job_11111111/time.jsonl":      recorded("1795268876000 attempt_0", "1795268877000 running", "1795268886000 agent")}, 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := postmortem.Time(found(t, tree(t, tt.files)))
			if err != nil {
				t.Fatal(err)
			}
			if wall := r.Ended.Sub(r.Started); wall != tt.wall || r.Spent.Sum() != 2*tt.wall.Milliseconds() {
				t.Errorf("%v of wall clock, and 2 workers had %d ms; want %v", wall, r.Spent.Sum(), tt.wall)
			}
			var b strings.Builder
			if err := r.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			checkHarmless(t, b.String())
			for line := range strings.Lines(b.String()) {
				if len(line) > 500 {
					t.Errorf("a line of %d bytes: %.100s", len(line), line)
				}
			}
		})
	}
}
