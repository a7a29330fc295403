package autopsy_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/autopsy"
)

// brief writes threads as one line each: the name, * for main, and the frames.
func brief(threads []autopsy.Thread) []string {
	var lines []string
	for _, t := range threads {
		name := t.Name
		if name == "" {
			name = t.ID
		}
		if t.Main {
			name += "*"
		}
		for _, f := range t.Frames {
			name += " " + f.Function
		}
		lines = append(lines, name)
	}
	return lines
}

// Source: the output of py-spy 0.4.3 on a rank that waits for its DataLoader.
func TestParsePySpy(t *testing.T) {
	text, err := os.ReadFile("testdata/pyspy.json")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := autopsy.ParsePySpy(text, 1082)
	if err != nil {
		t.Fatal(err)
	}
	feeder := " Condition.wait Queue._feed Thread.run Thread._bootstrap_inner Thread._bootstrap"
	want := []string{
		"MainThread* _PollLikeSelector.select wait Connection._poll _ConnectionBase.poll Queue.get " +
			"_MultiProcessingDataLoaderIter._try_get_data _MultiProcessingDataLoaderIter._get_data " +
			"_MultiProcessingDataLoaderIter._next_data _BaseDataLoaderIter.__next__ load main " +
			"ContextDecorator.__call__.<locals>.inner <module>",
		"QueueFeederThread" + feeder, "QueueFeederThread" + feeder,
	}
	if diff := cmp.Diff(want, brief(threads)); diff != "" {
		t.Errorf("threads (-want +got):\n%s", diff)
	}
	if f := threads[0].Frames[9]; f != (autopsy.Frame{Function: "load", File: "/srv/w.py", Line: 10}) {
		t.Errorf("frame 9 is %+v", f)
	}
	if threads[0].TID != 1082 || threads[1].TID >= threads[2].TID {
		t.Errorf("threads are in the order %d, %d, %d", threads[0].TID, threads[1].TID, threads[2].TID)
	}
}

func TestParsePySpyErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "py-spy's JSON"},
		{"not JSON", "Process 7: python", "py-spy's JSON"},
		{"cut off", `[{"pid": 7, "frames": [`, "py-spy's JSON"},
		{"no threads", `[]`, "names no thread"},
		{"of another process", `[{"pid": 8, "os_thread_id": 8, "frames": []}]`, "names no thread"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := autopsy.ParsePySpy([]byte(tt.text), 7)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

// What a source says is bounded, however much it is.
func TestParseBounds(t *testing.T) {
	const threads, frames = 700, 200
	var spy strings.Builder
	spy.WriteString("[")
	for i := range threads {
		if i > 0 {
			spy.WriteString(",")
		}
		spy.WriteString(`{"os_thread_id": 1, "thread_name": "` + strings.Repeat("n", 10_000) + `", "frames": [`)
		for j := range frames {
			if j > 0 {
				spy.WriteString(",")
			}
			spy.WriteString(`{"name": "f"}`)
		}
		spy.WriteString("]}")
	}
	spy.WriteString("]")
	got, err := autopsy.ParsePySpy([]byte(spy.String()), 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 512 || len(got[0].Frames) != 128 || len(got[0].Name) > 5000 {
		t.Errorf("kept %d threads, %d frames, a name of %d bytes", len(got), len(got[0].Frames), len(got[0].Name))
	}
}

func FuzzParsePySpy(f *testing.F) {
	text, err := os.ReadFile("testdata/pyspy.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`[{"pid":1082,"os_thread_id":1082,"frames":null}]`))
	f.Add([]byte(`[{"frames":[{"line":-1}]}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		threads, err := autopsy.ParsePySpy(text, 1082)
		checkThreads(t, threads, err)
	})
}

// checkThreads checks what holds of every result, and that a report can be made of it.
func checkThreads(t *testing.T, threads []autopsy.Thread, err error) {
	if (err == nil) == (len(threads) == 0) {
		t.Fatalf("%d threads, error %v", len(threads), err)
	}
	if len(threads) > 512 {
		t.Fatalf("%d threads", len(threads))
	}
	r := autopsy.Report{Workers: []autopsy.Worker{{Python: autopsy.Python{Source: "x", Threads: threads}}}}
	if groups := r.Groups(); len(groups) != 1 || r.Summary() == "" || r.Text() == "" {
		t.Fatalf("%d groups", len(groups))
	}
}
