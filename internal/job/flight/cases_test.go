package flight_test

import "github.com/muster-run/muster/internal/job/flight"

type compared struct {
	name, job string
	places    bool
	world     int
	kind      flight.Kind
	ranks     []int
	text      string
}

const quiet = ". gloo records no sends and receives, and NCCL the first between two ranks when both have come"

var cases = []compared{
	{name: "missing", places: true, kind: flight.Missing, ranks: []int{3}, job: `
		0: dp 4710 all_reduce; dp 4711 all_reduce 6553600 waits
		1: dp 4710 all_reduce; dp 4711 all_reduce 6553600 waits
		2: dp 4710 all_reduce; dp 4711 all_reduce 6553600 waits
		3: dp 4710 all_reduce`,
		text: "3 ranks wait in all_reduce 4711 of group dp (25 MiB float32); rank 3 on host1 has not come: train.py:88 in load_batch"},
	{name: "missing without a stack", kind: flight.Missing, ranks: []int{1}, job: `
		0: tp 1 all_reduce 16 waits
		1: default 7 all_reduce_barrier in=train.py`,
		text: "rank 0 waits in all_reduce 1 of group tp (64 B float32); rank 1 has not come: its last is barrier 7 of the default group (train.py:18 in step)"},
	{name: "two are missing", kind: flight.Missing, ranks: []int{1, 3}, job: `
		0: dp 1 barrier waits
		1: tp 1 all_reduce
		2: dp 1 barrier waits
		3: tp 1 all_reduce`,
		text: "ranks 0, 2 wait in barrier 1 of group dp; ranks 1, 3 have not come; rank 1: its last is all_reduce 1 of group tp"},
	{name: "missing behind another wait", kind: flight.Missing, ranks: []int{3}, job: `
		0: dp 1 all_reduce 4; dp 2 all_reduce 4 waits
		1: dp 1 all_reduce 4; dp 2 all_reduce 4 waits
		2: dp 1 all_reduce 4; tp 1 all_gather 4 waits
		3: dp 1 all_reduce 4`,
		text: "rank 2 waits in all_gather 1 of group tp (16 B float32); rank 3 has not come: its last is all_reduce 1 of group dp"},
	{name: "another collective", kind: flight.Different, ranks: []int{2}, job: `
		0: dp 5 all_reduce 16 waits
		1: dp 5 all_reduce 16 waits
		2: dp 5 _all_gather_base 16/64 waits in=eval.py
		3: dp 5 all_reduce 16 waits`,
		text: "rank 2 is in all_gather_into_tensor 5 of group dp (eval.py:18 in step) where ranks 0-1, 3 are in all_reduce"},
	{name: "another collective, long ago", kind: flight.Different, ranks: []int{2}, job: `
		0: dp 5 all_reduce 16; dp 6 all_reduce 16 waits
		1: dp 5 all_reduce 16; dp 6 all_reduce 16 waits
		2: dp 5 broadcast 16; dp 6 all_reduce 16 waits
		3: dp 5 all_reduce 16; dp 6 all_reduce 16`,
		text: "rank 2 is in broadcast 5 of group dp where ranks 0-1, 3 are in all_reduce"},
	{name: "another collective of two", kind: flight.Different, ranks: []int{0, 1}, job: `
		0: tp 5 all_reduce 16 waits
		1: tp 5 broadcast 16 waits`,
		text: "rank 1 is in broadcast 5 of group tp where rank 0 is in all_reduce"},
	{name: "another size", kind: flight.Different, ranks: []int{1}, job: `
		0: dp 5 all_reduce 1048576 waits
		1: dp 5 all_reduce 16
		2: dp 5 all_reduce 1048576 waits
		3: dp 5 all_reduce 1048576 waits`,
		text: "rank 1 is in all_reduce 5 of group dp with 64 B float32 where ranks 0, 2-3 have 4.0 MiB float32"},
	{name: "another type", kind: flight.Different, ranks: []int{3}, job: `
		0: dp 5 all_reduce 16 waits
		1: dp 5 all_reduce 16 waits
		2: dp 5 all_reduce 16 waits
		3: dp 5 all_reduce 16 BFloat16 waits`,
		text: "rank 3 is in all_reduce 5 of group dp with 32 B bfloat16 where ranks 0-2 have 64 B float32"},
	{name: "another size that has ended", kind: flight.None, job: `
		0: tp 5 all_reduce 16
		1: tp 5 all_reduce 32`,
		text: "no operation that is recorded waits for a rank" + quiet},
	{name: "sizes that may differ", kind: flight.Stuck, job: `
		0: tp 5 scatter 32/16 waits
		1: tp 5 scatter 0/16 waits
		2: tp 5 gather 16/0 waits
		3: tp 5 gather 16/32 waits`,
		text: "ranks 0-1 are all in scatter 5 of group tp of ranks 0-1 (64 B float32) and it does not end: look at the network and the GPUs"},
	{name: "uneven", kind: flight.Stuck, job: `
		0: tp 5 all_to_all 32/16 waits
		1: tp 5 all_to_all 16/32 waits`,
		text: "ranks 0-1 are all in all_to_all 5 of group tp (128 B float32) and it does not end: look at the network and the GPUs"},
	{name: "another order", kind: flight.Order, ranks: []int{0}, job: `
		0: tp 1 all_reduce 16 waits in=train.py
		1: dp 1 all_reduce 16 waits
		2: dp 1 all_reduce 16 waits
		3: dp 1 all_reduce 16 waits`,
		text: "rank 0 is in all_reduce 1 of group tp (train.py:18 in step) where ranks 1-3 are in all_reduce 1 of group dp: they enter these in another order, and each waits for the other"},
	{name: "another order of send and receive", kind: flight.Order, ranks: []int{0, 1}, job: `
		0: tp 1 recv 0<-1 waits
		1: tp 1 all_reduce 16 waits`,
		text: "rank 0 is in recv in group tp where rank 1 is in all_reduce 1 of group tp: they enter these in another order, and each waits for the other"},
	{name: "all have come", kind: flight.Stuck, job: `
		0: dp 1 all_reduce 16 waits
		1: dp 1 all_reduce 16 waits
		2: dp 1 all_reduce 16 waits
		3: dp 1 all_reduce 16 waits`,
		text: "ranks 0-3 are all in all_reduce 1 of group dp (64 B float32) and it does not end: look at the network and the GPUs"},
	{name: "not begun by one GPU", kind: flight.Stuck, ranks: []int{1}, job: `
		0: dp 1 all_reduce 16 runs
		1: dp 1 all_reduce 16 waits
		2: dp 1 all_reduce 16 runs
		3: dp 1 all_reduce 16 runs`,
		text: "ranks 0-3 are all in all_reduce 1 of group dp (64 B float32) and it does not end: it has begun for ranks 0, 2-3 and not for rank 1, where the GPU still has other work"},
	{name: "ended for some", kind: flight.Stuck, job: `
		0: dp 1 all_reduce 16
		1: dp 1 all_reduce 16 waits
		2: dp 1 all_reduce 16; dp 2 all_reduce 16
		3: dp 1 all_reduce 16 waits`,
		text: "ranks 0-3 are all in all_reduce 1 of group dp (64 B float32) and it does not end: it has ended for ranks 0, 2"},
	{name: "no dump of the one who may be missing", kind: flight.Unknown, job: `
		0: dp 1 all_reduce 16 waits
		1: dp 1 all_reduce 16 waits
		2: dp 1 all_reduce 16 waits`,
		text: "3 ranks wait in all_reduce 1 of group dp (64 B float32); whether rank 3 has come cannot be told without its dump"},
	{name: "a ring that has lost the group", kind: flight.Unknown, job: `
		0: dp 1 all_reduce 16 waits
		1: dp 1 all_reduce 16 waits
		2: dp 1 all_reduce 16 waits
		3: lost tp 1 all_reduce 16`,
		text: "3 ranks wait in all_reduce 1 of group dp (64 B float32); whether rank 3 has come cannot be told from its record"},
	{name: "a ring that has lost the beginning", kind: flight.Missing, ranks: []int{3}, job: `
		0: dp 0 all_reduce 8; dp 1 all_reduce 16; dp 2 all_reduce 16 waits
		1: dp 0 all_reduce 8; dp 1 all_reduce 16; dp 2 all_reduce 16 waits
		2: dp 0 all_reduce 8; dp 1 all_reduce 16; dp 2 all_reduce 16 waits
		3: lost dp 1 all_reduce 16`,
		text: "3 ranks wait in all_reduce 2 of group dp (64 B float32); rank 3 has not come: its last is all_reduce 1 of group dp"},
	{name: "lost in between", kind: flight.None, job: `
		0: tp 1 all_reduce 16; tp 2 all_reduce 16; tp 3 all_reduce 16
		1: tp 1 all_reduce 16; tp 3 all_reduce 16`,
		text: "no operation that is recorded waits for a rank" + quiet},
	{name: "no collective", kind: flight.None, job: `
		0:
		1:`,
		text: "no operation that is recorded waits for a rank" + quiet},
	{name: "no dumps", kind: flight.Unknown, text: "there are no dumps to compare"},
	{name: "a receive without its send", places: true, kind: flight.Missing, ranks: []int{3}, job: `
		0: dp 1 send 0->1 16
		1: dp 1 recv 1<-0 0/16
		2: dp 1 recv 2<-3 0/16; dp 2 recv 2<-3 0/16 waits
		3: dp 1 send 3->2 16`,
		text: "rank 2 on host1 waits in recv in group dp (64 B float32); rank 3 on host1 has not come: train.py:88 in load_batch"},
	{name: "a send without its receive", kind: flight.Missing, ranks: []int{2}, job: `
		0: dp 1 all_reduce 16
		2: dp 1 all_reduce 16
		3: dp 1 send 3->2 16 waits`,
		text: "rank 3 waits in send in group dp (64 B float32); rank 2 has not come: its last is all_reduce 1 of group dp"},
	{name: "a send and its receive", kind: flight.Stuck, job: `
		2: dp 1 recv 2<-3 0/16 waits
		3: dp 1 send 3->2 16 waits`,
		text: "ranks 2-3 are all in recv in group dp (64 B float32) and it does not end: look at the network and the GPUs"},
	{name: "a send that was buffered", kind: flight.Stuck, job: `
		2: dp 1 recv 2<-3 0/16 waits
		3: dp 1 send 3->2 16`,
		text: "ranks 2-3 are all in recv in group dp (64 B float32) and it does not end: it has ended for rank 3"},
	{name: "a receive from anyone", kind: flight.Unknown, job: `
		0: tp 1 recv 0<-? 0/16 waits
		1:`,
		text: "rank 0 waits in recv in group tp (64 B float32); from any rank: the dumps do not tell who should send"},
	{name: "a receive whose sends are lost", kind: flight.Unknown, job: `
		0: tp 1 recv 0<-1 0/16 waits
		1: lost default 1 barrier`,
		text: "rank 0 waits in recv in group tp (64 B float32); whether rank 1 has come cannot be told from its record"},
	{name: "a send and its receive after a loss", kind: flight.Stuck, job: `
		2: lost dp 7 recv 2<-3 0/16; dp 8 recv 2<-3 0/16 waits
		3: lost dp 8 send 3->2 16 waits`,
		text: "ranks 2-3 are all in recv in group dp (64 B float32) and it does not end: look at the network and the GPUs"},
	{name: "a batch of sends and receives", kind: flight.None, job: `
		0: tp 1 send 0->1 16 waits; tp 1 recv 0<-1 0/16 waits; tp 1 coalesced p2p
		1: tp 1 recv 1<-0 0/16 waits; tp 1 send 1->0 16 waits; tp 1 coalesced p2p`,
		text: "no operation that is recorded waits for a rank" + quiet},
	{name: "coalesced", kind: flight.Missing, ranks: []int{1}, job: `
		0: tp 1 all_gather 16 waits; tp 1 all_gather 32 waits; tp 1 coalesced; tp 2 all_gather 16 waits; tp 2 coalesced waits
		1: tp 1 all_gather 16 waits; tp 1 all_gather 32 waits; tp 1 coalesced`,
		text: "rank 0 waits in all_gather 2 of group tp (64 B float32); rank 1 has not come: its last is coalesced 1 of group tp"},
	{name: "another number of coalesced", kind: flight.Different, ranks: []int{0, 1}, job: `
		0: tp 1 all_gather 16 waits; tp 1 all_gather 32 waits; tp 1 coalesced waits
		1: tp 1 all_gather 16 waits; tp 1 coalesced waits`,
		text: "rank 1 is in 1 coalesced operation such as all_gather 1 of group tp where rank 0 is in 2 coalesced operations such as all_gather"},
	{name: "a group that is made anew", kind: flight.Missing, ranks: []int{1}, job: `
		0: tp 1 barrier; tp 2 all_reduce 16; tp 1 all_reduce 16 pg=5; tp 2 barrier pg=5 waits
		1: tp 1 barrier; tp 2 all_reduce 16; tp 1 all_reduce 16 pg=4`,
		text: "rank 0 waits in barrier 2 of group tp; rank 1 has not come: its last is all_reduce 1 of group tp"},
	{name: "two jobs with one rank", kind: flight.Unknown, job: `
		0: dp 1 all_reduce 16
		0: dp 1 all_reduce 16 waits`,
		text: "two dumps are of rank 0: they may be of two jobs, and are not compared"},
	{name: "two jobs of several sizes", kind: flight.Unknown, job: `
		0: default 1 barrier
		1: 4 1 barrier`,
		text: "the dumps are of two jobs, of 4 and of 2 ranks, and are not compared"},
	{name: "a rank that is another one", kind: flight.Unknown, job: `
		0: tp 1 all_reduce 16 waits
		1: 3 1 all_reduce 16`,
		text: "rank 0 waits in all_reduce 1 of group tp (64 B float32); whether rank 1 has come cannot be told without its dump"},
	{name: "a sender that is another one", kind: flight.Unknown, job: `
		0: tp 1 send 1->0 16 waits`,
		text: "there are no dumps to compare"},
	{name: "a group whose members are not told", kind: flight.Unknown, job: `
		0: nameless 1 all_reduce 16 waits
		1: nameless 1 all_reduce 16 waits`,
		text: "ranks 0-1 wait in all_reduce 1 of group nameless (64 B float32); the dumps do not tell whether more ranks are in the group"},
	{name: "one is missing in a group whose members are not told", kind: flight.Missing, ranks: []int{1}, job: `
		0: nameless 1 all_reduce 16; nameless 2 all_reduce 16 waits
		1: nameless 1 all_reduce 16`,
		text: "rank 0 waits in all_reduce 2 of group nameless (64 B float32); rank 1 has not come: its last is all_reduce 1 of group nameless"},
	{name: "all of the job are in the group", world: 2, kind: flight.Stuck, job: `
		0: nameless 1 all_reduce 16 waits
		1: nameless 1 all_reduce 16 waits`,
		text: "ranks 0-1 are all in all_reduce 1 of group nameless (64 B float32) and it does not end: look at the network and the GPUs"},
	{name: "gloo", kind: flight.None, job: `
		0: tp 1 gloo:all_reduce 16 retired
		1: tp 1 gloo:all_reduce 16 retired`,
		text: "no operation that is recorded waits for a rank" + quiet},
	{name: "NCCL after its time limit", kind: flight.Missing, ranks: []int{1}, job: `
		0: tp 1 all_reduce 16 retired
		1: default 1 barrier`,
		text: "rank 0 waits in all_reduce 1 of group tp (64 B float32); rank 1 has not come: its last is barrier 1 of the default group"},
}
