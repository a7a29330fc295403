package autopsy_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/muster-run/muster/internal/job/autopsy"
)

// mebibytes fills 4 MiB, which is what another host may answer, with an element again and again.
func mebibytes(before, element, after string) []byte {
	return []byte(before + element + strings.Repeat(","+element, (4<<20-len(before)-len(after)-len(element))/(len(element)+1)) + after)
}

// bombs are answers of 4 MiB that would take much more memory than that.
var bombs = map[string][]byte{
	"workers":  mebibytes(`{"workers":[`, `{}`, `]}`),
	"twice":    mebibytes(`{"workers":[`, `{}`, `],"workers":[{}]}`),
	"nulls":    mebibytes(`{"workers":[`, `null`, `]}`),
	"threads":  mebibytes(`{"workers":[{"python":{"threads":[`, `{}`, `]}}]}`),
	"frames":   mebibytes(`{"workers":[{"python":{"threads":[{"frames":[`, `{}`, `]}]}}]}`),
	"children": mebibytes(`{"workers":[{"children":[`, `{}`, `]}]}`),
	"problems": mebibytes(`{"workers":[{"problems":[`, `""`, `]}]}`),
}

// What another host says takes a bounded memory, however little text it needs for it.
func TestPeersRefuseBombs(t *testing.T) {
	for name, body := range bombs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := new(autopsy.Peers).Read(body)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "too large") || r != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: the refusal took %d bytes", name, took)
		}
	}
	for _, body := range []string{"", "[", `{"workers":`, strings.Repeat("]", 100), `"\`, `{"workers":3}`} {
		if r, err := new(autopsy.Peers).Read([]byte(body)); err == nil || r != nil {
			t.Errorf("%q: %v", body, r)
		}
	}
}

// The stacks of 128 workers with a data loader each are read, and those of a thousand such hosts are not.
func TestPeersRead(t *testing.T) {
	frames := make([]autopsy.Frame, 30)
	for i := range frames {
		frames[i] = autopsy.Frame{Function: "forward_\"[{,", File: "/usr/lib/python3/site-packages/torch/nn/modules/module.py", Line: i}
	}
	python := autopsy.Python{Source: "py-spy", Threads: []autopsy.Thread{{Main: true, Frames: frames}, {Name: "pin_memory", Frames: frames[:5]}}}
	host := autopsy.Report{Workers: make([]autopsy.Worker, 128)}
	for i := range host.Workers {
		host.Workers[i] = autopsy.Worker{Rank: i, Python: python, Children: []autopsy.Process{{PID: 9, Python: python}}}
	}
	body, err := json.Marshal(host.Brief())
	if err != nil {
		t.Fatal(err)
	}
	var peers autopsy.Peers
	r, err := peers.Read(body)
	if err != nil || len(r.Workers) != 128 || len(r.Workers[127].Children[0].Python.Threads[0].Frames) != 30 {
		t.Fatalf("%d bytes: %v", len(body), err)
	}
	for i := 1; i < 1000; i++ {
		if err := peers.Admit(body); err != nil {
			if !strings.Contains(err.Error(), "all hosts") || i < 64 {
				t.Errorf("host %d: %v", i, err)
			}
			return
		}
	}
	t.Error("there is no limit for all hosts")
}

// Another host adds no line to what is printed.
func TestPeersLines(t *testing.T) {
	r, err := new(autopsy.Peers).Read([]byte(`{"host":"b\nc","workers":[{"rank":1,"host":"b\nforged","python":{"threads":[{"main":true,"frames":[
		{"function":"step\nforged","file":"train.py\nforged","line":3}]}]}},{"rank":2,"state":"running\nforged","python":{"problems":["none\nforged"]},"problems":["no\r\nforged"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	all := (&autopsy.Report{Host: "a"}).With([]*autopsy.Report{r}, nil)
	for name, text := range map[string]string{"answer": all.Answer(), "text": all.Text()} {
		if strings.Contains(text, "\nforged") || !strings.Contains(text, "step forged") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
