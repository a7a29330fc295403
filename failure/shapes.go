package failure

import "strings"

// A shape is how a line looks that tells something about a failure.
type shape struct {
	role role
	name string // testdata/shapes/NAME.txt has an example, its source, and what a person wants to read
	line string // with * for what may be anything, and | between spellings
	says string // depends on the role
}

// A role is what a shape tells.
type role int

const (
	begins   role = iota // an account; readers[says] reads it
	goesOn               // above a traceback: the process goes on after it
	aside                // between such a line and the traceback
	within               // a frame of such a traceback
	library              // a frame of code that is not the user's
	between              // between the tracebacks of a chain
	other                // after a message: it is over
	network              // in an error in lower case: it is about other workers,
	lost                 // and they are lost
	above                // a message: its cause is what a child has written above
	orphaned             // a message: a child is gone, or what it was to say
	vague                // a message of a chain: another one says more
	leaving              // a message: the program was told to end
	crash                // a line: why the process crashed
	reason               // a line: why the process exited
	logged               // a line: a log's, of an error
	open                 // the begin of a message that needs a further line for each sign of says
	detail               // a further line of a message that says more, or with says the line after it
	asserted             // a line: the reason of an error that has the text of says
	farewell             // a line that libraries print at the end, whatever the reason
	waits                // in lower case: a collective that did not end, its number, name and milliseconds
	progress             // in lower case: the last work that was enqueued
	missing              // in lower case: ranks that did not come; says is what for
	advice               // in the worker's last words: says is what helps
	roles
)

// patterns are the spellings of the shapes by role, each cut at its *.
var patterns = func() (all [roles][]pattern) {
	for i := range shapes {
		for spelling := range strings.SplitSeq(shapes[i].line, "|") {
			p := pattern{&shapes[i], strings.Split(spelling, "*"), len(strings.ReplaceAll(spelling, "*", ""))}
			all[p.role] = append(all[p.role], p)
		}
	}
	return all
}()

type pattern struct {
	*shape
	parts []string
	least int // bytes of a line
}

// find returns the first shape of a role that a line has; nil without one. stars, if it is not nil, gets what
// stood for each *.
func find(r role, line string, stars ...*string) *shape {
	for i := range patterns[r] {
		if p := &patterns[r][i]; len(line) >= p.least && p.match(line, stars) {
			return p.shape
		}
	}
	return nil
}

// is reports whether a line has a shape of a role.
func is(r role, line string) bool { return find(r, line) != nil }

func (p *pattern) match(s string, stars []*string) bool {
	s, ok := strings.CutPrefix(s, p.parts[0])
	for i, part := range p.parts[1:] {
		at := len(s) - len(part)
		if i < len(p.parts)-2 {
			at = strings.Index(s, part)
		} else {
			ok = ok && strings.HasSuffix(s, part) // it is at the end
		}
		if !ok || at < 0 {
			return false
		}
		if i < len(stars) {
			*stars[i] = s[:at]
		}
		s = s[at+len(part):]
	}
	return ok && s == ""
}

// shapes are what programs are known to print. The first one of a role that matches counts.
var shapes = [...]shape{
	{begins, "traceback", "*Traceback (most recent call last):|*Traceback (most recent call last): ", "chain"},
	{begins, "rich", "\u256d\u2500*Traceback (most recent call last)*\u2500\u256e", "chain"},
	{begins, "headless", `  File "*", line *`, "headless"},
	{begins, "fatal", "Fatal Python error: *|Timeout (*)!", "fatal"},
	{begins, "terminate", "*terminate called after throwing *|terminate called without *", "terminate"},
	{begins, "panic", "panic: *|fatal error: *", "panic"},

	{goesOn, "ignored", "Exception ignored *|--- Logging error*|Error in atexit*|Error in sitecustomize*", ""},
	{goesOn, "thread", "Exception in thread *|Process *:|*exception calling callback for <Future *", ""},
	{goesOn, "task", "*Task exception was never *|*Future exception was never *|*Exception in callback *", ""},
	{aside, "task", "future: <*|task: <*|handle: <*|source_traceback: *", ""},
	{within, "resource-tracker", `*multiprocessing/resource_tracker.py", line *|*/queues.py", line *, in _feed`, ""},
	{library, "bare-library", "*site-packages*|*dist-packages*|*/lib/python3*|*<frozen *", ""},
	{between, "chain", "During handling of the above exception, another exception occurred:|" +
		"The above exception was the direct cause of the following exception:", ""},
	{other, "fatal", "Fatal Python error: *|terminate called *|Current thread 0x*|Thread 0x*|Error in *|[rank*", ""},

	{network, "lost-gloo", "*gloo*|*c10d*|*nccl*|*tcpstore*|*torch.distributed*|*torch/distributed*|" +
		"*processgroup*|*mpi_*|*tensorpipe*|*jax distributed*", ""},
	{lost, "lost-gloo", "*connection closed by peer*|*connection reset by peer*|*broken pipe*|*connection refused*|" +
		"*connectfullmesh failed*|*timed out waiting*|*recvbytes*|*sendbytes*|*another task died*|*eof: end of file*", ""},
	{lost, "lost-store",
		"*failed to recv*|*connection was likely closed*|*socket timeout*|*wait timeout*|*timed out after*", ""},
	{lost, "lost-nccl", "*remote process exited*|*ncclremoteerror*|*nccl communicator was aborted*|" +
		"*collective operation timeout*", ""},

	{above, "called-process", "subprocess.CalledProcessError: Command *|CalledProcessError: Command *", ""},
	{above, "see-above", "*root cause above*|*(above) for the root cause*|*ChildFailedError:*|" +
		"*ProcessExitedException: process * terminated with *",
		""},
	{orphaned, "exited-unexpectedly", "*killed by signal*|*exited unexpectedly*|*lost sys.stderr*|*BrokenProcessPool*",
		""},
	{orphaned, "killed-command", "*died with <Signals.SIGKILL*|*exit status -9*|*exit status 137*|*signal SIGKILL*", ""},
	{orphaned, "broken-queue", "*queue.Empty*|*ConnectionResetError*|*BrokenPipeError*|*EOFError*", ""},
	{vague, "broken-queue", "*) exited unexpectedly*|*queue.Empty|ConnectionResetError: *|BrokenPipeError: *|EOFError",
		""},
	{leaving, "told-to-end", "SystemExit*|KeyboardInterrupt*|*SIGTERM*|*SignalException*|*by signal: Terminated*", ""},

	{crash, "glog", "F0* *:*:*] *|F1* *:*:*] *|F2* *:*:*] *|*] Check failed: *|LLVM ERROR: *|" +
		"Memory access fault by GPU *|*HSA_STATUS_ERROR*|libc++abi: terminating *", ""},
	{crash, "glibc", "*double free *|*free(): *|*malloc(): *|*corrupted *|*munmap_chunk(): *|*stack smashing detected*|" +
		"*buffer overflow detected*|*pure virtual method called*", ""},
	{crash, "assert", "*Assertion `*' failed.*|*Assertion failed: (*", ""},
	{reason, "hydra", "Error locating target *|Error in call to target *|Could not override *|Could not append to *|" +
		"Cannot find primary config *|In *: Could not find *", ""},
	{reason, "pytest", "FAILED *::*|ERROR *.py - *", ""},
	{reason, "muster", "muster: rank * on host *: *", ""},
	{reason, "rust", "thread '*' panicked at *", ""},
	{logged, "logged", "ERROR: *|CRITICAL: *|*ERROR *: *|*CRITICAL *: *|* - ERROR - *|{*\"error\"*|{*\"ERROR\"*", ""},

	{open, "colon", "*:", "+"},
	{open, "pydantic", "*validation error for *|*validation errors for *", "++"},
	{detail, "compiler", "*nvcc fatal *|*: error: *|*: fatal error: *|ninja: error: *|*: cannot find -l*|" +
		"*traceback : Signal *", ""},
	{detail, "last-error", "Last error:", "+"},
	{asserted, "device-assert", "*: block: [*], thread: [*] Assertion `*` failed.", "device-side assert"},

	{farewell, "destroy", "*destroy_process_group() was not called before program exit*|*wandb: *|wandb:", ""},
	{farewell, "leaked", "*resource_tracker: There appear to be *|warnings.warn(*|sys:1: *Warning: *|lost sys.stderr", ""},
	{farewell, "hydra", "Set the environment variable HYDRA_FULL_ERROR=1*|note: run with `RUST_BACKTRACE=*", ""},
	{farewell, "stack", "@ 0x*|frame #*: *|*** SIG* received by PID *|PC: @ *", ""},

	{waits, "watchdog", "*worknccl(seqnum=*, optype=*, *) ran for * milliseconds*", ""},
	{progress, "watchdog", "*last enqueued work: *,*|*last enqueued nccl work: *,*", ""},
	{missing, "monitored-barrier", "*[rank *]: rank * failed to pass monitoredbarrier*|" +
		"*[rank *]: ranks * failed to pass monitoredbarrier*", "monitoredBarrier"},
	{missing, "desync", "*- [*] finished collective #*, but didn't join collective #*", "collective"},

	{advice, "cuda-oom", "*CUDA out of memory*|*OutOfMemoryError*|*HIP out of memory*|*CUDA error: out of memory*|" +
		"*_STATUS_ALLOC_FAILED*|*'out of memory'*|*RESOURCE_EXHAUSTED: Out of memory*",
		"the GPU's memory is full: make batch or model smaller, or see with nvidia-smi who else uses it"},
	{advice, "duplicate-gpu", "*Duplicate GPU detected*",
		"two workers of a host use one GPU: let each take its own with " +
			"torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), and start one per GPU (--nproc-per-node gpu)"},
	{advice, "invalid-device", "*invalid device ordinal*", "the host has fewer GPUs than that: take GPU LOCAL_RANK, " +
		"not RANK, and start one worker per GPU (--nproc-per-node gpu)"},
	{advice, "shm", "*out of shared memory*|*shared memory*No space left*|*file </torch_*|*insufficient shared memory*|" +
		"*signal: Bus error*", "/dev/shm or a mapped file's disk may be full; containers often have only 64 MiB " +
		"(--shm-size, --ipc=host)"},
	{advice, "child-killed", "*is killed by signal: Killed*|*died with <Signals.SIGKILL*|" +
		"*process pool was terminated abruptly*|*utils/data/dataloader.py*ConnectionResetError: *",
		"somebody killed a child of the " +
			"worker, mostly the kernel for lack of memory: see dmesg; use fewer DataLoader workers, or raise the memory limit"},
	{advice, "no-module", "*ModuleNotFoundError*|*: No module named *|*No module named '*",
		"install the module for PROGRAM, or start muster in the environment that has it"},
	{advice, "undefined-symbol", "*: undefined symbol: *",
		"that library was built for another release of PyTorch or CUDA: reinstall or rebuild it"},
	{advice, "no-main", "*can't find '__main__' module in*",
		"the script is a directory without __main__.py, or its name is empty"},
	{advice, "no-script", "*can't open file*",
		"check the script's path; a relative one starts at the working directory of muster"},
	{advice, "port", "*Address already in use*|*EADDRINUSE*",
		"another process listens on that port; choose another, or end it (ss -ltnp)"},
	{advice, "disk", "*No space left on device*", "a file system is full; see df"},
	{advice, "files", "*Too many open files*", "raise ulimit -n"},
	{advice, "local-rank", "*arguments: --local-rank*|*arguments: --local_rank*|*required: --local*",
		"muster passes no --local-rank, as torchrun does not: let the script read LOCAL_RANK from its environment"},
	{advice, "arguments", "*error: unrecognized arguments*|*error: the following arguments are required*|*usage: *",
		"the script does not take these arguments; muster's own options go before the script"},
}
