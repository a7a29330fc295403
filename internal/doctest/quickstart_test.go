//go:build linux

package doctest

func quickstart(p *play) {
	p.run("bin/muster run --nproc-per-node auto train.py", "MUSTER_DEVICES=4").exits(0).says(4, `^rank [0-3] of 4: training $`)

	// One worker fails, once.
	job := p.run("bin/muster run --nproc-per-node 8 --max-restarts 3 --tee 3 --log-dir logs train.py --epochs 90", "TRAIN=boom:3:0 stay::0").exits(0)
	job.says(1, `^\[default3\]:rank 3 of 8: training --epochs 90$`).says(1, `restarting the worker group cause="rank 3 .*: ValueError: boom"`)
	p.run("bin/muster report logs").exits(0).says(1, "^train.py: ").says(1, "root cause  rank 3 .*: ValueError: boom$")
	p.run("bin/muster logs logs --rank 3").exits(0).says(1, "rank 3 of 8: training --epochs 90$")

	job = p.start(0, "bin/muster run --nproc-per-node 8 --health-addr 9000 train.py", "TRAIN=stay").says(8, "training $")
	p.run("bin/muster top 9000").exits(0).says(1, "running HEALTHY  train.py").says(1, "world 8")
	job.interrupt().exits(1)

	p.run("bin/muster run --nproc-per-node 8 --hang-timeout 600 --max-restarts 3 train.py").exits(0).says(8, "training $")
	p.run("bin/muster doctor --nproc-per-node 8", p.torch()).exits(0).says(1, "^host0: ")
	p.run("bin/muster explain --nproc-per-node 8 train.py").exits(0).says(1, "nproc-per-node +8 ")
}
