//go:build linux

package doctest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func tutorial(p *play) {
	script := slices.IndexFunc(p.page.Blocks, func(b Block) bool { return b.Kind == "python" })
	if script < 0 {
		p.Fatal("the tutorial has no script")
	}
	p.must(os.WriteFile(filepath.Join(p.dir, "fragile.py"), []byte(p.page.Blocks[script].Text), 0o666))

	const run = "muster run --nproc-per-node 4 --tee 3 --log-dir logs "
	for _, step := range []struct {
		command string
		status  int
		env     string
	}{
		{run + "fragile.py", 0, ""},
		{run + "fragile.py raise", 1, ""},
		{run + "fragile.py kill", 1, ""},
		{run + "--hang-timeout 3 fragile.py hang", 1, "MUSTER_DUMP_SIGNAL=SIGUSR1"},
		{run + "--max-restarts 1 fragile.py raise", 0, ""},
		{"muster report logs", 0, ""},
		{"muster logs logs --rank 2 --attempt 0", 0, ""},
	} {
		r := p.run(step.command, "OMP_NUM_THREADS=", step.env).exits(step.status)
		if r.shown != "" {
			r.prints(false)
		}
	}
	p.do(0, p.form("muster report --list logs", "", "")).exits(0).says(5, " attempts? ")
}

// sees checks that a command has printed the lines of a block of the page, whatever it
// has printed between them; the block is the one that begins with a text.
func (p *play) sees(begin string, r *run) {
	p.Helper()
	i := slices.IndexFunc(p.page.Blocks, func(b Block) bool { return strings.HasPrefix(strings.TrimSpace(b.Text), begin) })
	if i < 0 {
		p.Fatalf("%s has no block that begins with %q", p.page.Name, begin)
	}
	r.shown = p.page.Blocks[i].Text
	r.among()
}

// among checks that the lines which the page shows are among those of the command.
func (r *run) among() {
	r.p.Helper()
	lines := strings.Split(strings.Trim(r.shown, "\n"), "\n")
	r.shown = "…\n" + strings.Join(lines, "\n…\n") + "\n…"
	r.prints(false)
}

const abort = `import os, sys
print("terminate called after throwing an instance of 'c10::DistBackendError'", file=sys.stderr)
print("  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", file=sys.stderr)
os.abort()
`

func troubleshooting(p *play) {
	write := func(name, text string) { p.must(os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o666)) }

	// Hosts meet.
	const options = "--rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py"
	alone := p.do(1, "muster run --nnodes 2 "+options).says(1, "cannot be reached yet").interrupt()
	p.sees("muster: waiting for hosts: the rendezvous cannot", alone)
	first := p.do(0, "muster run --nnodes 2 "+options, "TRAIN=stay").says(1, "waiting for hosts: 1 of 2")
	p.sees("muster run: error: c10d rendezvous at host0:29400: refused", p.do(1, "muster run --nnodes 3 "+options).exits(1))
	doctor := "muster doctor --nnodes 2 --rdzv-endpoint host0:29400 --rdzv-id job7"
	here, there := p.start(0, doctor, p.torch()), p.start(1, doctor, p.torch())
	here.exits(0).among()
	there.exits(0)
	other := p.do(1, "muster run --nnodes 2 "+options, "TRAIN=stay").says(1, "training")
	p.must(first.cmd.Process.Kill())
	p.sees("muster: waiting for hosts: 1 of 2", first.wait())
	p.sees("muster run: error: lost the connection", other.exits(1))
	p.run("muster version").exits(0)
	p.run("muster explain --nnodes 2 "+options).exits(0).says(1, "^nnodes +2 ")

	server := p.do(0, "python3 -u -m http.server 29500").says(1, "Serving")
	p.sees("muster run: error: static rendezvous", p.do(0, "muster run --nnodes 2 --master-addr host0 --master-port 29500 --node-rank 0 train.py").exits(1))
	p.run("muster doctor --nnodes 2 --rdzv-endpoint host0:29500 --wait 2", p.torch()).exits(1).among()
	server.interrupt()

	slurm := p.do(0, "muster run train.py", "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=host0,host1").exits(2)
	p.sees("muster run: error: job 7 of Slurm", slurm)
	p.run("muster explain train.py").exits(0).says(1, "^nnodes +1:1 +default$")
	p.sees("muster run: error: argument --nproc-per-node", p.do(0, "muster run --nproc-per-node gpu train.py").exits(2))

	// Workers fail.
	write("nccl.py", abort)
	write("segv.py", "import ctypes\nctypes.string_at(0)\n")
	p.sees("muster: rank 0 (local_rank 0, pid 4306)", p.do(0, "muster run nccl.py").exits(1))
	p.sees("muster: rank 1 (local_rank 1, pid 83)", p.do(0, "muster run --nproc-per-node 2 train.py", "TRAIN=die:1: stay").exits(1))
	p.sees("muster: rank 0 (local_rank 0, pid 95)", p.do(0, "muster run segv.py").exits(1))
	p.sees("muster: rank 0 (local_rank 0, pid 111)", p.do(0, "muster run segv.py", "PYTHONFAULTHANDLER=1").exits(1))
	p.sees("muster: rank 0 (local_rank 0, pid 161)", p.do(0, "muster run --no-python sh -c 'exit 3'").exits(1))
	p.sees("cause     : exit code 1", p.do(0, "muster run --no-python sh -c 'echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. >&2; exit 1'").exits(1))

	p.sees("muster: log files in", p.do(0, "muster run --redirects 3 --log-dir logs train.py").exits(0))
	p.sees("W1122 20:12:45", p.do(0, "muster run --nproc-per-node 2 --tee 3 --max-restarts 2 --log-dir logs train.py", "TRAIN=boom:1 stay").exits(1))
	p.run("muster report logs").exits(0).among()
	p.run("muster logs logs --follow").exits(0)
	p.run("muster logs logs --lines 20").exits(0).says(1, "ValueError: boom$")
}
