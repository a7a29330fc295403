package autopsy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-run/muster/internal/job/autopsy"
)

const (
	site   = "/srv/venv/lib/python3.11/site-packages/"
	stdlib = "/usr/lib/python3.11/"
	c10d   = site + "torch/distributed/distributed_c10d.py"
	loader = site + "torch/utils/data/dataloader.py"
)

// frames makes frames of "file:line function", the innermost first.
func frames(texts ...string) []autopsy.Frame {
	var list []autopsy.Frame
	for _, text := range texts {
		place, function, _ := strings.Cut(text, " ")
		i := strings.LastIndexByte(place, ':')
		f := autopsy.Frame{File: place[:i], Function: function}
		fmt.Sscan(place[i+1:], &f.Line)
		list = append(list, f)
	}
	return list
}

func mainThread(texts ...string) autopsy.Thread {
	return autopsy.Thread{Name: "MainThread", Main: true, Frames: frames(texts...)}
}

func other(name string, texts ...string) autopsy.Thread {
	return autopsy.Thread{Name: name, Frames: frames(texts...)}
}

// state is a worker in a state without stacks, in the style of python.
func state(word string) autopsy.Worker { return autopsy.Worker{State: word} }

func python(threads ...autopsy.Thread) autopsy.Worker {
	return autopsy.Worker{State: "sleeping", Python: autopsy.Python{Source: "py-spy", Threads: threads}}
}

func repeat(n int, w autopsy.Worker) []autopsy.Worker {
	var list []autopsy.Worker
	for range n {
		list = append(list, w)
	}
	return list
}

func reduce(line int) autopsy.Worker {
	return python(mainThread(c10d+":4181 all_reduce", site+"torch/distributed/c10d_logger.py:83 wrapper",
		fmt.Sprintf("/srv/train.py:%d step", line), "/srv/train.py:90 <module>"))
}

func TestGroups(t *testing.T) {
	loading := python(mainThread(stdlib+"selectors.py:415 select", stdlib+"multiprocessing/queues.py:113 get",
		loader+":1293 _try_get_data", loader+":725 _BaseDataLoaderIter.__next__", "/srv/train.py:48 step", "/srv/train.py:90 <module>"))
	reading := python(mainThread("/srv/data.py:7 Images.__getitem__", site+"torch/utils/data/_utils/fetch.py:54 fetch",
		loader+":725 _BaseDataLoaderIter.__next__", "/srv/train.py:48 step"))
	sleeping := python(mainThread("/srv/train.py:33 Net.forward", "/srv/train.py:52 step"))
	onGPU := python(mainThread(site+"torch/cuda/streams.py:254 synchronize", "/srv/train.py:53 step"))
	stuck := onGPU
	stuck.State = "uninterruptible sleep"
	stopped := reduce(50)
	stopped.State = "stopped"
	wrapped := autopsy.Worker{State: "sleeping", Python: autopsy.Python{Problems: []string{"not Python"}},
		Children: []autopsy.Process{{PID: 7, Python: reduce(50).Python}}}
	native := autopsy.Worker{PID: 5, State: "sleeping", Native: autopsy.Native{Threads: []autopsy.NativeThread{
		{TID: 5, State: "sleeping", Syscall: "read fd 3", WaitChannel: "pipe_read"}}}}
	unread := native
	unread.Python.Unread = true
	hook := other("Dummy-1", c10d+":99 all_gather_into_tensor", site+"torch/distributed/fsdp/_unshard.py:3 unshard")
	backward := mainThread(site+"torch/autograd/graph.py:8 _engine_run_backward", site+"torch/_tensor.py:6 backward", "/srv/train.py:55 step")

	tests := []struct {
		name    string
		workers []autopsy.Worker
		want    []string // the groups, * for odd
		summary string
	}{
		{
			name:    "nobody",
			summary: "no workers",
		},
		{
			name:    "all in one place",
			workers: repeat(4, reduce(50)),
			want:    []string{"0-3 in all_reduce (distributed_c10d.py:4181)"},
			summary: "4 ranks in all_reduce (distributed_c10d.py:4181)",
		},
		{
			name:    "one loads data",
			workers: append(append(repeat(3, reduce(50)), loading), repeat(4, reduce(50))...),
			want: []string{
				"*3 in DataLoader.__next__ (dataloader.py:725)",
				"0-2, 4-7 in all_reduce (distributed_c10d.py:4181)",
			},
			summary: "7 ranks in all_reduce (distributed_c10d.py:4181), rank 3 in DataLoader.__next__ (dataloader.py:725)",
		},
		{
			name: "one still meets the others",
			workers: append(repeat(3, reduce(50)), python(mainThread(site+"torch/distributed/rendezvous.py:206 _create_c10d_store",
				site+"torch/distributed/rendezvous.py:290 _env_rendezvous_handler", c10d+":1782 init_process_group", "/srv/train.py:9 <module>"))),
			want:    []string{"*3 in rendezvous (rendezvous.py:206)", "0-2 in all_reduce (distributed_c10d.py:4181)"},
			summary: "3 ranks in all_reduce (distributed_c10d.py:4181), rank 3 in rendezvous (rendezvous.py:206)",
		},
		{
			name:    "one that is not a Python",
			workers: append(repeat(3, reduce(50)), native),
			want:    []string{"*3 in the system call read, no Python stacks", "0-2 in all_reduce (distributed_c10d.py:4181)"},
			summary: "3 ranks in all_reduce (distributed_c10d.py:4181), rank 3 in the system call read, no Python stacks",
		},
		{
			name:    "one that could not be read is not to blame",
			workers: append(repeat(3, reduce(50)), unread),
			want:    []string{"3 in the system call read, no Python stacks", "0-2 in all_reduce (distributed_c10d.py:4181)"},
			summary: "3 ranks in all_reduce (distributed_c10d.py:4181), rank 3 in the system call read, no Python stacks",
		},
		{
			name:    "two that could not be read, and one that differs",
			workers: append(repeat(2, unread), reduce(50), reduce(50), loading, unread),
			want:    []string{"*4 in DataLoader.__next__ (dataloader.py:725)", "2-3 in all_reduce (distributed_c10d.py:4181)", "0-1, 5 in the system call read, no Python stacks"},
			summary: "3 ranks in the system call read, no Python stacks, 2 ranks in all_reduce (distributed_c10d.py:4181), rank 4 in DataLoader.__next__ (dataloader.py:725)",
		},
		{
			name:    "none could be read",
			workers: append(repeat(2, unread), state("stopped")),
			want:    []string{"*2 stopped with no Python stacks", "0-1 in the system call read, no Python stacks"},
			summary: "2 ranks in the system call read, no Python stacks, rank 2 stopped with no Python stacks",
		},
		{
			name:    "the user's code says more than the library that calls it",
			workers: append(repeat(2, reduce(50)), reading, sleeping),
			want: []string{
				"*2 in Images.__getitem__ under DataLoader.__next__ (data.py:7)",
				"*3 in Net.forward (train.py:33)",
				"0-1 in all_reduce (distributed_c10d.py:4181)",
			},
			summary: "2 ranks in all_reduce (distributed_c10d.py:4181), rank 2 in Images.__getitem__ under DataLoader.__next__ (data.py:7), rank 3 in Net.forward (train.py:33)",
		},
		{
			name:    "half of two waits for the other",
			workers: []autopsy.Worker{reduce(50), sleeping},
			want:    []string{"*1 in Net.forward (train.py:33)", "0 in all_reduce (distributed_c10d.py:4181)"},
			summary: "rank 0 in all_reduce (distributed_c10d.py:4181), rank 1 in Net.forward (train.py:33)",
		},
		{
			name:    "half of two waits for its GPU, where a collective may be",
			workers: []autopsy.Worker{onGPU, sleeping},
			want:    []string{"*1 in Net.forward (train.py:33)", "0 in torch.cuda synchronize (streams.py:254)"},
			summary: "rank 0 in torch.cuda synchronize (streams.py:254), rank 1 in Net.forward (train.py:33)",
		},
		{
			name:    "half of two waits for its GPU, the other in backward, which may",
			workers: []autopsy.Worker{onGPU, python(backward)},
			want:    []string{"0 in torch.cuda synchronize (streams.py:254)", "1 in backward (graph.py:8)"},
			summary: "rank 0 in torch.cuda synchronize (streams.py:254), rank 1 in backward (graph.py:8)",
		},
		{
			name:    "half of two is stuck with its GPU",
			workers: []autopsy.Worker{stuck, sleeping},
			want:    []string{"*0 uninterruptible sleep in torch.cuda synchronize (streams.py:254)", "1 in Net.forward (train.py:33)"},
			summary: "rank 1 in Net.forward (train.py:33), rank 0 uninterruptible sleep in torch.cuda synchronize (streams.py:254)",
		},
		{
			name:    "half of two waits for its GPU, the other for that one",
			workers: []autopsy.Worker{onGPU, reduce(50)},
			want:    []string{"*0 in torch.cuda synchronize (streams.py:254)", "1 in all_reduce (distributed_c10d.py:4181)"},
			summary: "rank 1 in all_reduce (distributed_c10d.py:4181), rank 0 in torch.cuda synchronize (streams.py:254)",
		},
		{
			name:    "the same collective called elsewhere",
			workers: append(repeat(3, reduce(50)), reduce(60)),
			want: []string{
				"*3 in all_reduce (distributed_c10d.py:4181) from step (train.py:60)",
				"0-2 in all_reduce (distributed_c10d.py:4181) from step (train.py:50)",
			},
			summary: "3 ranks in all_reduce (distributed_c10d.py:4181) from step (train.py:50), rank 3 in all_reduce (distributed_c10d.py:4181) from step (train.py:60)",
		},
		{
			name:    "neither of two is odd where nothing says which",
			workers: []autopsy.Worker{reduce(50), reduce(60)},
			want: []string{
				"0 in all_reduce (distributed_c10d.py:4181) from step (train.py:50)",
				"1 in all_reduce (distributed_c10d.py:4181) from step (train.py:60)",
			},
			summary: "rank 0 in all_reduce (distributed_c10d.py:4181) from step (train.py:50), rank 1 in all_reduce (distributed_c10d.py:4181) from step (train.py:60)",
		},
		{
			name:    "stopped, dead and gone ones are odd however many",
			workers: []autopsy.Worker{reduce(50), stopped, stopped, state("zombie"), state("gone")},
			want: []string{
				"*3 zombie", "*4 gone", "*1-2 stopped in all_reduce (distributed_c10d.py:4181)",
				"0 in all_reduce (distributed_c10d.py:4181)",
			},
			summary: "rank 0 in all_reduce (distributed_c10d.py:4181), ranks 1-2 stopped in all_reduce (distributed_c10d.py:4181), rank 3 zombie, rank 4 gone",
		},
		{
			name:    "a script that runs Python",
			workers: repeat(2, wrapped),
			want:    []string{"0-1 in all_reduce (distributed_c10d.py:4181) in a child process"},
			summary: "2 ranks in all_reduce (distributed_c10d.py:4181) in a child process",
		},
		{
			name:    "no Python",
			workers: repeat(2, native),
			want:    []string{"0-1 in the system call read, no Python stacks"},
			summary: "2 ranks in the system call read, no Python stacks",
		},
		{
			name:    "a collective that autograd's thread waits in",
			workers: repeat(2, python(backward, hook)),
			want:    []string{"0-1 in all_gather_into_tensor (distributed_c10d.py:99) in thread Dummy-1"},
			summary: "2 ranks in all_gather_into_tensor (distributed_c10d.py:99) in thread Dummy-1",
		},
		{
			name: "computing in a library",
			workers: repeat(2, python(mainThread(site+"torch/nn/modules/linear.py:125 Linear.forward",
				site+"torch/nn/modules/module.py:1 _call_impl", "/srv/train.py:33 Net.forward"))),
			want:    []string{"0-1 in Linear.forward (linear.py:125) from Net.forward (train.py:33)"},
			summary: "2 ranks in Linear.forward (linear.py:125) from Net.forward (train.py:33)",
		},
		{
			name:    "backward alone",
			workers: repeat(2, python(backward)),
			want:    []string{"0-1 in backward (graph.py:8)"},
			summary: "2 ranks in backward (graph.py:8)",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i := range tt.workers {
				tt.workers[i].Rank = i
			}
			r := autopsy.Report{Workers: tt.workers}
			var got []string
			for _, g := range r.Groups() {
				text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(g.Ranks)), ","), "[]") + " " + g.Name
				if g.Odd {
					text = "*" + text
				}
				got = append(got, text)
			}
			var want []string
			for _, w := range tt.want {
				ranks, name, _ := cutRanks(w)
				want = append(want, ranks+" "+name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
			if got := r.Summary(); got != tt.summary {
				t.Errorf("summary\n got %s\nwant %s", got, tt.summary)
			}
		})
	}
}

// Nobody is named where stacks are missing and what the kernel tells does not single a rank out.
func TestUnknown(t *testing.T) {
	in := func(call, problem string) autopsy.Worker {
		return autopsy.Worker{PID: 5, State: "sleeping", Python: autopsy.Python{Unread: true, Problems: []string{problem}},
			Native: autopsy.Native{Threads: []autopsy.NativeThread{{TID: 5, Syscall: call}}}}
	}
	const missing, denied = "py-spy: not installed: neither beside the worker's interpreter nor in PATH", "py-spy: not allowed"
	for _, tt := range []struct {
		name    string
		workers []autopsy.Worker
		missing []string
		want    string
	}{
		{"a tie", []autopsy.Worker{in("poll", missing), in("futex", missing)}, nil,
			"without Python stacks, nothing tells ranks 0-1 apart; pip install py-spy to see where they wait"},
		{"all alike", repeat(4, in("futex", denied)), nil,
			"without Python stacks, nothing tells ranks 0-3 apart; muster doctor says why there are none"},
		{"one of them has ended", []autopsy.Worker{state("gone"), in("poll", missing), in("futex", missing)}, nil,
			"without Python stacks, nothing tells ranks 1-2 apart; pip install py-spy to see where they wait"},
		{"most agree", []autopsy.Worker{in("poll", missing), in("poll", missing), in("futex", missing)}, nil, ""},
		{"one worker", []autopsy.Worker{in("poll", missing)}, nil, ""},
		{"stacks", []autopsy.Worker{reduce(50), reduce(50)}, nil, ""},
		{"stacks, and another host does not answer", []autopsy.Worker{reduce(50), reduce(50)}, []string{"group rank 1 (no answer)"},
			"nothing known of group rank 1 (no answer)"},
		{"one worker here, and another host does not answer", []autopsy.Worker{reduce(50)}, []string{"group rank 1 (no answer)"},
			"nothing known of group rank 1 (no answer)"},
		{"one differs, and another host does not answer", []autopsy.Worker{in("poll", missing), in("poll", missing), in("futex", missing)},
			[]string{"group rank 1 (no answer)"}, ""},
	} {
		for i := range tt.workers {
			tt.workers[i].Rank = i
		}
		r := autopsy.Report{Workers: tt.workers, Missing: tt.missing}
		if got := r.Unknown(); got != tt.want {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
	}
}

// cutRanks makes "0,1,2,5 name" of "0-2, 5 name".
func cutRanks(text string) (ranks, name string, odd bool) {
	text, odd = strings.CutPrefix(text, "*")
	i := strings.IndexAny(text, "abcdefghijklmnopqrstuvwxyz") - 1
	var list []string
	for part := range strings.SplitSeq(text[:i], ", ") {
		var from, to int
		if n, _ := fmt.Sscanf(part, "%d-%d", &from, &to); n == 1 {
			to = from
		}
		for r := from; r <= to; r++ {
			list = append(list, fmt.Sprint(r))
		}
	}
	ranks = strings.Join(list, ",")
	if odd {
		ranks = "*" + ranks
	}
	return ranks, text[i+1:], odd
}

// Sources name functions differently and see different lines; that parts no group.
func TestGroupsAcrossSources(t *testing.T) {
	spy := python(mainThread(loader+":725 _BaseDataLoaderIter.__next__", "/srv/train.py:48 Trainer.fit.<locals>.step"))
	fault := python(mainThread(loader+":731 __next__", "/srv/train.py:48 step"))
	fault.Rank = 1
	r := autopsy.Report{Workers: []autopsy.Worker{spy, fault}}
	groups := r.Groups()
	if len(groups) != 1 {
		t.Fatalf("%d groups: %s", len(groups), r.Summary())
	}
	if diff := cmp.Diff([]int{725, 731}, groups[0].Lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// Where the odd one's children are is part of its group.
func TestGroupChildren(t *testing.T) {
	child := autopsy.Process{State: "sleeping", Python: python(mainThread("/srv/data.py:7 read")).Python}
	w := python(mainThread(loader + ":725 __next__"))
	for _, pid := range []int{12, 11, 13} {
		child.PID = pid
		w.Children = append(w.Children, child)
	}
	w.Children = append(w.Children, autopsy.Process{PID: 20, State: "sleeping"})
	r := autopsy.Report{Workers: []autopsy.Worker{w}}
	want := []string{"3 child processes, 11-13: in read (data.py:7)"}
	if diff := cmp.Diff(want, r.Groups()[0].Children); diff != "" {
		t.Errorf("children (-want +got):\n%s", diff)
	}
}
