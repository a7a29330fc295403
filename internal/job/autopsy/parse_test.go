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

func TestParseFaulthandler(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{
			// Source: the worker server of PyTorch 2.15, with Python 3.11.
			name: "worker server",
			text: `Current thread 0x00007f2baaffd6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f2c689e5b80 (most recent call first):
  File "/srv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181 in all_reduce
  File "/srv/w.py", line 16 in main
  File "/srv/w.py", line 17 in <module>
`,
			want: []string{"0x7f2c689e5b80* all_reduce main <module>", "0x7f2baaffd6c0"},
		},
		{
			// Source: dump_traceback in Python/traceback.c of Python 3.14.
			name: "names of threads",
			text: `Thread 0x00007f01 [loader 1] (most recent call first):
  File "a.py", line 1 in get
  File "/usr/lib/python3.14/threading.py", line 1 in _bootstrap
Current thread 0x00007f02 [python3] (most recent call first):
  File "a.py", line ??? in f
  File "a.py", line 3 in <module>
`,
			want: []string{"python3* f <module>", "loader 1 get _bootstrap"},
		},
		{
			name: "other output around and within",
			text: `step 17: loss 0.3
Current thread 0x1 (most recent call first):
  File "a.py", line 1 in f
  ...
step 18: loss 0.2
  File "b.py", line 1 in not_of_a_stack
Thread 0x2 (most recent call first):
  File "c.py", line 1 in g`,
			want: []string{"0x2* g", "0x1 f"},
		},
		{
			name: "the last of two dumps",
			text: `Thread 0x1 (most recent call first):
  File "a.py", line 1 in old
Current thread 0x2 (most recent call first):
  File "a.py", line 1 in <module>

Thread 0x1 (most recent call first):
  File "a.py", line 1 in new
Current thread 0x2 (most recent call first):
  File "a.py", line 9 in <module>
`,
			want: []string{"0x2* <module>", "0x1 new"},
		},
		{
			name: "names that look like the format",
			text: `Thread 0x1 (most recent call first):
  File "/srv/", line 3 in x.py", line 12 in f
  File "a.py", line 4 in g in h
  File "broken
  File "a.py", line 5
`,
			want: []string{"0x1* f g in h"},
		},
		{
			name: "carriage returns",
			text: "Thread 0x1 (most recent call first):\r\n  File \"a.py\", line 1 in f\r\n",
			want: []string{"0x1* f"},
		},
		{
			name: "no main thread left",
			text: "Thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in run\n  File \"/usr/lib/python3.11/threading.py\", line 2 in _bootstrap\n",
			want: []string{"0x1 run _bootstrap"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			threads, err := autopsy.ParseFaulthandler([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, brief(threads)); diff != "" {
				t.Errorf("threads (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseFaulthandlerNothing(t *testing.T) {
	for _, text := range []string{"", "User defined signal 1\n", "Thread 0xzz (most recent call first):\n", "  File \"a.py\", line 1 in f\n"} {
		if threads, err := autopsy.ParseFaulthandler([]byte(text)); err == nil {
			t.Errorf("of %q: %v", text, brief(threads))
		}
	}
}

// What a source says is bounded, however much it is.
func TestParseBounds(t *testing.T) {
	const threads, frames = 700, 200
	var fault, spy strings.Builder
	spy.WriteString("[")
	for i := range threads {
		fault.WriteString("Thread 0x" + strings.Repeat("1", 1+i%3) + hex(i) + " (most recent call first):\n")
		if i > 0 {
			spy.WriteString(",")
		}
		spy.WriteString(`{"os_thread_id": 1, "thread_name": "` + strings.Repeat("n", 10_000) + `", "frames": [`)
		for j := range frames {
			fault.WriteString("  File \"a.py\", line 1 in " + strings.Repeat("f", 100) + "\n")
			if j > 0 {
				spy.WriteString(",")
			}
			spy.WriteString(`{"name": "f"}`)
		}
		spy.WriteString("]}")
	}
	spy.WriteString("]")
	for name, parse := range map[string]func() ([]autopsy.Thread, error){
		"faulthandler": func() ([]autopsy.Thread, error) { return autopsy.ParseFaulthandler([]byte(fault.String())) },
		"py-spy":       func() ([]autopsy.Thread, error) { return autopsy.ParsePySpy([]byte(spy.String()), 1) },
	} {
		got, err := parse()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(got) != 512 || len(got[0].Frames) != 128 || len(got[0].Name) > 5000 {
			t.Errorf("%s: kept %d threads, %d frames, a name of %d bytes", name, len(got), len(got[0].Frames), len(got[0].Name))
		}
	}
}

func hex(n int) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[n>>8&15], digits[n>>4&15], digits[n&15]})
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

func FuzzParseFaulthandler(f *testing.F) {
	f.Add([]byte("Current thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in f\n"))
	f.Add([]byte("Thread 0x1 [n] (most recent call first):\n  <no Python frame>\n\nThread 0x2 (most recent call first):\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		threads, err := autopsy.ParseFaulthandler(text)
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
