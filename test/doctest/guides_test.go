//go:build linux

package doctest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-run/muster/internal/test/pypeer"
	"github.com/muster-run/muster/internal/test/testproc"
)

// write puts a file beside the scripts.
func (p *play) write(name, text string) {
	p.Helper()
	p.must(os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o666))
}

// script saves the script that the page has.
func (p *play) script(name string) {
	p.Helper()
	i := slices.IndexFunc(p.page.Blocks, func(b Block) bool { return b.Kind == "python" })
	if i < 0 {
		p.Fatalf("%s has no script", p.page.Name)
	}
	p.write(name, p.page.Blocks[i].Text)
}

// tutorial goes through the lessons of the page. The one that takes longest, the hang, runs
// beside the first three.
func tutorial(p *play) {
	p.script("fragile.py")

	const run = "muster run --nproc-per-node 4 --tee 3 --log-dir logs "
	hang := p.start(0, run+"--hang-timeout 3 fragile.py hang", "PYTHON_EXEC="+pypeer.Python(p), testproc.Unpaused) // py-spy is beside it
	p.run(run + "fragile.py").exits(0).prints(false)
	p.run(run+"fragile.py raise", testproc.Unpaused).exits(1).prints(false)
	p.run(run + "fragile.py kill").exits(1).prints(false)
	hang.exits(1).prints(false)
	p.run(run+"--max-restarts 1 fragile.py raise", testproc.Unpaused).exits(0).prints(false)
	p.run("muster report logs").exits(0).prints(false)
	p.run("muster logs logs --rank 2 --attempt 0").exits(0).prints(false)
	p.do(0, p.form("muster report --list logs", "", "")).exits(0).says(5, " attempts? ")
}

// sees checks that a command has printed the lines of a block of the page, the first that
// has a text in it, whatever the command has printed between them.
func (p *play) sees(text string, r *run) {
	p.Helper()
	i := slices.IndexFunc(p.page.Blocks, func(b Block) bool { return strings.Contains(b.Text, text) })
	if i < 0 {
		p.Fatalf("%s has no block with %q", p.page.Name, text)
	}
	r.shown = p.page.Blocks[i].Text
	p.done[r.shown] = true
	r.among()
}

// among checks that the lines which the page shows are among those of the command.
func (r *run) among() {
	r.p.Helper()
	lines := strings.Split(strings.Trim(r.shown, "\n"), "\n")
	r.shown = "…\n" + strings.Join(lines, "\n…\n") + "\n…"
	r.prints(false)
}

func troubleshooting(p *play) {
	const options = "--rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job7 train.py"
	alone := p.do(1, "muster run --nnodes 2 "+options)
	failures(p)
	p.sees("cannot be reached yet", alone.says(1, "cannot be reached yet").interrupt())

	first := p.do(0, "muster run --nnodes 2 "+options, "TRAIN=stay").says(1, "waiting for hosts: 1 of 2")
	p.sees("refused by the rendezvous", p.do(1, "muster run --nnodes 3 "+options).exits(1))
	doctor := "muster doctor --nnodes 2 --rdzv-endpoint host0:29400 --rdzv-id job7"
	here, there := p.start(0, doctor, p.torch()), p.start(1, doctor, p.torch())
	here.exits(0).among()
	there.exits(0)
	other := p.do(1, "muster run --nnodes 2 "+options, "TRAIN=stay").says(1, "training")
	p.must(first.cmd.Process.Kill())
	p.sees("waiting for hosts: 1 of 2", first.wait())
	p.sees("cannot outlive it", other.exits(1))
	p.run("muster version").exits(0)
	p.run("muster explain --nnodes 2 "+options).exits(0).says(1, "^nnodes +2 ")

	server := p.do(0, "python3 -u -m http.server 29500").says(1, "Serving")
	p.sees("address already in use", p.do(0, "muster run --nnodes 2 --master-addr host0 --master-port 29500 --node-rank 0 train.py").exits(1))
	p.run("muster doctor --nnodes 2 --rdzv-endpoint host0:29500 --wait 2", p.torch()).exits(1).among()
	server.interrupt()

	p.sees("was started on this one only", p.do(0, "muster run train.py", "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=host0,host1").exits(2))
	p.run("muster explain train.py").exits(0).says(1, "^nnodes .* default$")
	p.sees("Cuda is not available", p.do(0, "muster run --nproc-per-node gpu train.py").exits(2))

	for _, b := range p.page.Blocks {
		if (strings.HasPrefix(b.Text, "muster: ") || strings.HasPrefix(b.Text, "muster run: ")) && !p.done[b.Text] {
			p.Errorf("%s:%d: nothing prints %s", p.page.Name, b.Line, b.Text)
		}
	}
}

// What a worker prints when NCCL's watchdog ends it.
const abort = `import os, sys
print("terminate called after throwing an instance of 'c10::DistBackendError'", file=sys.stderr)
print("  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", file=sys.stderr)
os.abort()
`

// failures are those of workers, on one host.
func failures(p *play) {
	p.write("nccl.py", abort)
	p.write("segv.py", "import ctypes\nctypes.string_at(0)\n")
	p.sees("Watchdog caught", p.do(0, "muster run nccl.py").exits(1))
	p.sees("killed by SIGKILL", p.do(0, "muster run --nproc-per-node 2 train.py", "TRAIN=die:1: stay").exits(1))
	p.sees("killed by SIGSEGV", p.do(0, "muster run segv.py").exits(1))
	p.do(0, "muster run segv.py", "PYTHONFAULTHANDLER=1").exits(1).says(1, "^muster: .*: Segmentation fault in string_at ")
	p.sees("exit code 3", p.do(0, "muster run --no-python sh -c 'exit 3'").exits(1))
	p.sees("CUDA out of memory", p.do(0, "muster run --no-python sh -c 'echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. >&2; exit 1'").exits(1))

	p.sees("muster: log files in", p.do(0, "muster run --redirects 3 --log-dir logs train.py").exits(0))
	p.sees("restart=1/2", p.do(0, "muster run --nproc-per-node 2 --tee 3 --max-restarts 2 --log-dir logs train.py", "TRAIN=boom:1 stay").exits(1))
	p.run("muster report logs").exits(0).among()
	p.run("muster logs logs --follow").exits(0)
	p.run("muster logs logs --lines 20").exits(0).says(1, "ValueError: boom$")
}
