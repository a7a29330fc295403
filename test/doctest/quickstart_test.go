//go:build linux

package doctest

import "strings"

func quickstart(p *play) {
	p.run("muster run --nproc-per-node auto train.py", "MUSTER_DEVICES=4").exits(0).says(4, `^rank [0-3] of 4: training $`)

	job := p.run("muster run --nproc-per-node 8 --max-restarts 3 --tee 3 --log-dir logs train.py --epochs 90", "TRAIN=boom:3 stay").exits(1)
	job.says(4, `^\[default3\]:rank 3 of 8: training --epochs 90$`).says(1, `restart=3/3`)
	job.says(1, `^muster: rank 3 \(local_rank 3, pid \d+\) on host host0 in attempt_3 \(after 3 of 3 restarts\): ValueError: boom$`)
	p.run("muster report logs").exits(0).says(1, "^train.py: failed after 4 attempts").says(4, "root cause  rank 3 .*: ValueError: boom$")
	p.run("muster logs logs --rank 3").exits(0).says(1, "rank 3 of 8: training --epochs 90$")

	job = p.start(0, "muster run --nproc-per-node 8 --health-addr 9000 train.py", "TRAIN=stay").says(8, "training $")
	if page := p.health(0)("/"); !strings.Contains(page, "<title>") {
		p.Errorf("the status page:\n%s", page)
	}
	job.interrupt().exits(1)

	p.run("muster run --nproc-per-node 8 --hang-timeout 600 --max-restarts 3 train.py").exits(0).says(8, "training $")
	p.run("muster doctor --nproc-per-node 8", p.torch()).exits(0).says(1, "^host0: ")
	p.run("muster explain --nproc-per-node 8 train.py").exits(0).says(1, "nproc-per-node +8 ")
	p.run("muster explain --write job.yaml --nproc-per-node 8 --max-restarts 3 --tee 3 train.py --epochs 90").exits(0).says(1, "^Wrote job.yaml")
	p.run("muster run --config job.yaml").exits(0).says(8, "^\\[default[0-7]\\]:rank [0-7] of 8: training --epochs 90$")
}
