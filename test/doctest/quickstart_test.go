//go:build linux

package doctest

import (
	"os"
	"path/filepath"
	"strings"
)

// quickstart trains with the page's own script, and then with that of the tests, which has no end of its own.
func quickstart(p *play) {
	p.must(os.Rename(filepath.Join(p.dir, "train.py"), filepath.Join(p.dir, "plain.py")))
	p.script("train.py")
	p.run("muster run --nproc-per-node 2 train.py").exits(0).prints(false)
	job := p.start(0, "muster run --rdzv-id demo --nproc-per-node 4 --max-restarts 3 --tee 3 --log-dir logs train.py").says(4, "step 1$")
	p.run("muster signal KILL demo --rank 1").exits(0).prints(false)
	p.sees("restart=1/3", job.exits(0))
	p.run("muster report logs").exits(0).says(1, "^train.py: succeeded after 2 attempts").says(1, "root cause  rank 1 .*: killed by SIGKILL$")
	p.run("muster logs logs --rank 1").exits(0).says(1, "rank 1 of 4: step 19$")
	p.must(os.Rename(filepath.Join(p.dir, "plain.py"), filepath.Join(p.dir, "train.py")))

	job = p.start(0, "muster run --rdzv-id demo --nproc-per-node 2 --health-addr 9000 train.py", "TRAIN=stay").says(2, "training $")
	if page := p.health(0)("/"); !strings.Contains(page, "<title>") {
		p.Errorf("the status page:\n%s", page)
	}
	p.do(0, "muster ps").exits(0).says(1, "train.py")
	p.do(0, "muster stop demo").exits(0)
	job.exits(1)

	p.run("muster run --nproc-per-node 8 --hang-timeout 600 --max-restarts 3 train.py").exits(0).says(8, "training $")
	p.run("muster doctor --nproc-per-node 8", p.torch()).exits(0).says(1, "^host0: ")
	p.run("muster explain --nproc-per-node 8 train.py").exits(0).says(1, "nproc-per-node +8 ")
}
