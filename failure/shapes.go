package failure

import "strings"

// A shape is how a line looks that tells something about a failure.
type shape struct {
	role role
	name string // testdata/shapes/NAME.txt is an example
	// line is the text of the line with * for what may be anything. | is between spellings.
	line   string
	says   string // depends on the role
	source string // who prints it, or a public report that has it
}

// A role is what a shape tells.
type role int

const (
	begins   role = iota // an account of the kind that says names
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
	open                 // the begin of a message that needs as many of its next lines as says has signs
	detail               // a further line of a message that says more than the first; with says, the line after it
	asserted             // a line: the reason of an error that has the text of says
	farewell             // a line that libraries print at the end, whatever the reason
	waits                // in lower case: a collective that did not end: operation, number and milliseconds
	progress             // in lower case: the last works that were enqueued and completed
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
	{begins, "traceback", "*Traceback (most recent call last):|*Traceback (most recent call last): ", "chain", "CPython traceback.c"},
	{begins, "rich", "╭─*Traceback (most recent call last)*─╮", "chain", "rich.traceback; yangjianxin1/Firefly#32"},
	{begins, "headless", `  File "*", line *`, "headless", "CPython, syntax errors"},
	{begins, "fatal", "Fatal Python error: *", "fatal", "CPython faulthandler.c"},
	{begins, "timeout", "Timeout (*)!", "timeout", "faulthandler.dump_traceback_later"},
	{begins, "terminate", "*terminate called after throwing *|terminate called without *", "terminate", "libstdc++ vterminate.cc; huggingface/open-r1#620"},
	{begins, "panic", "panic: *|fatal error: *", "panic", "Go runtime/panic.go"},

	{goesOn, "ignored", "Exception ignored *", "", "CPython PyErr_WriteUnraisable"},
	{goesOn, "thread", "Exception in thread *", "", "CPython threading.excepthook"},
	{goesOn, "atexit", "Error in atexit*|Error in sitecustomize*", "", "CPython atexit, site"},
	{goesOn, "logging", "--- Logging error*", "", "CPython logging.Handler.handleError"},
	{goesOn, "task", "*Task exception was never retrieved|*Future exception was never retrieved|*Exception in callback *", "",
		"asyncio.base_events; thinking-machines-lab/tinker-cookbook#945, NovaSky-AI/SkyRL PR#1691"},
	{goesOn, "future", "*exception calling callback for <Future *", "", "concurrent.futures._base"},
	{goesOn, "process", "Process *:", "", "CPython multiprocessing.process; vllm-project/vllm#19002"},
	{aside, "task", "future: <*|task: <*|handle: <*|source_traceback: *", "", "asyncio.base_events"},
	{within, "resource-tracker", `  File "*multiprocessing/resource_tracker.py", line *, in main`, "", "vllm-project/vllm#5468, mlcommons/storage#777"},
	{within, "feeder", `  File "*multiprocessing/queues.py", line *, in _feed`, "", "tristandeleu/pytorch-maml#15"},
	{library, "bare-library", "*site-packages*|*dist-packages*|*/lib/python3*|*<frozen *", "", "CPython site, importlib"},
	{between, "chain", "During handling of the above exception, another exception occurred:|" +
		"The above exception was the direct cause of the following exception:", "", "CPython traceback.py"},
	{other, "fatal", "Fatal Python error: *|terminate called *|Current thread 0x*|Thread 0x*|Error in *|[rank*", "", "CPython, libstdc++, torch"},

	{network, "lost-gloo", "*gloo*|*c10d*|*tcpstore*|*torch.distributed*|*torch/distributed*", "", "torch/csrc/distributed/c10d"},
	{network, "lost-nccl", "*nccl*|*processgroup*|*mpi_*|*jax distributed*", "", "NCCL, MPI, JAX"},
	{lost, "lost-gloo", "*connection reset by peer*|*connection closed by peer*|*broken pipe*|*connectfullmesh failed*|*timed out waiting*|" +
		"*recvbytes*|*sendbytes*|*connection refused*", "", "gloo transport/tcp"},
	{lost, "lost-store", "*failed to recv*|*connection was likely closed*|*socket timeout*|*wait timeout*|*timed out after*", "", "c10d TCPStore, socket.cpp"},
	{lost, "lost-nccl", "*remote process exited*|*ncclremoteerror*|*nccl communicator was aborted*|*collective operation timeout*", "",
		"ProcessGroupNCCL.cpp, NCCLUtils.cpp; tatsu-lab/stanford_alpaca#207"},
	{lost, "lost-jax", "*another task died*", "", "jax distributed; marin-community/marin#5753"},

	{above, "called-process", "subprocess.CalledProcessError: Command *|CalledProcessError: Command *", "", "CPython subprocess; huggingface/accelerate#4277"},
	{above, "child-failed", "*ChildFailedError:*", "", "torch/distributed/elastic"},
	{above, "see-above", "*root cause above*|*see above for *", "", "vLLM; vllm-project/vllm#26898, #17618"},
	{above, "process-exited", "*ProcessExitedException: process * terminated with *", "", "torch.multiprocessing.spawn"},
	{orphaned, "exited-unexpectedly", "*killed by signal*|*exited unexpectedly*|*lost sys.stderr*|*terminated abruptly*|*BrokenProcessPool*", "",
		"torch.utils.data, concurrent.futures; hpcaitech/Open-Sora#815"},
	{orphaned, "killed-command", "*died with <Signals.SIGKILL*|*exit status -9*|*exit status 137*|*signal SIGKILL*", "", "CPython subprocess"},
	{orphaned, "broken-queue", "*queue.Empty*|*ConnectionResetError*|*BrokenPipeError*|*EOFError*", "", "CPython multiprocessing"},
	{vague, "exited-unexpectedly", "*DataLoader worker (pid(s) *) exited unexpectedly*", "", "torch.utils.data; hpcaitech/Open-Sora#815"},
	{vague, "broken-queue", "*queue.Empty|ConnectionResetError: *|BrokenPipeError: *|EOFError", "", "CPython multiprocessing"},
	{leaving, "told-to-end", "SystemExit*|KeyboardInterrupt*|*SIGTERM*|*SignalException*|*killed by signal: Terminated*", "",
		"Lightning-AI/pytorch-lightning#20542, torch.distributed.elastic"},

	{crash, "glog", "F0* *:*:*] *|F1* *:*:*] *|F2* *:*:*] *", "", "glog, abseil; pytorch/xla#8591, marin-community/marin#5753"},
	{crash, "glibc", "*double free *|*free(): *|*malloc(): *|*corrupted size vs. prev_size*|*munmap_chunk(): *|*corrupted double-linked list*", "",
		"glibc malloc.c; ray-project/ray#5883"},
	{crash, "smashed", "*stack smashing detected*|*buffer overflow detected*|*pure virtual method called*", "", "glibc fortify_fail.c, libstdc++"},
	{crash, "assert", "*Assertion `*' failed.*|*Assertion failed: (*", "", "assert(3)"},
	{crash, "rocm", "Memory access fault by GPU *|HSA_STATUS_ERROR*|LLVM ERROR: *", "", "ROCr; pytorch/pytorch PR#186010"},
	{reason, "hydra", "Error locating target *|Error in call to target *|Could not override *|Could not append to config*|" +
		"Cannot find primary config *|In *: Could not find *", "", "hydra; ashleve/lightning-hydra-template#350"},
	{reason, "pytest", "FAILED *::* - *|FAILED *::*|ERROR *.py - *", "", "pytest; torch-spyre#3833"},
	{reason, "muster", "muster: rank * on host *: *", "", "muster within muster"},
	{reason, "rust", "thread '*' panicked at *", "", "Rust std::panicking"},
	{logged, "logged", "ERROR: *|CRITICAL: *|FATAL: *|*ERROR *: *|*CRITICAL *: *| * - ERROR - *", "", "logging, structured logs; RBLN-SW/vllm-rbln#1136"},

	{open, "colon", "*:", "+", "torch load_state_dict, hydra; facebookresearch/sam2#568"},
	{open, "pydantic", "*validation error for *|*validation errors for *", "++", "pydantic"},
	{open, "rust", "thread '*' panicked at *:", "+", "Rust std::panicking"},
	{detail, "compiler", "*nvcc fatal *|*: error: *|*: fatal error: *|ninja: error: *|*: cannot find -l*", "", "nvcc, gcc, ninja; deepspeedai/DeepSpeed#6892"},
	{detail, "last-error", "Last error:", "+", "getNcclErrorDetailStr in NCCLUtils.cpp"},
	{asserted, "device-assert", "*: block: [*], thread: [*] Assertion `*` failed.", "device-side assert",
		"aten/src/ATen/native/cuda; milesial/Pytorch-UNet#375, pytorch/pytorch#150734"},

	{farewell, "destroy", "*destroy_process_group() was not called before program exit*", "", "~ProcessGroupNCCL"},
	{farewell, "wandb", "*wandb: *|wandb:", "", "wandb"},
	{farewell, "hydra", "Set the environment variable HYDRA_FULL_ERROR=1*", "", "hydra._internal.utils"},
	{farewell, "leaked", "*resource_tracker: There appear to be *|warnings.warn(*|sys:1: *Warning: *", "", "CPython resource_tracker"},
	{farewell, "lost-stderr", "lost sys.stderr", "", "CPython flush_std_files"},
	{farewell, "rust", "note: run with `RUST_BACKTRACE=*", "", "Rust std::panicking"},
	{farewell, "stack", "@ 0x*|frame #*: *|*** SIG* received by PID *|PC: @ *", "", "glog, c10::Error"},

	{waits, "watchdog", "*worknccl(seqnum=*, optype=*, *) ran for * milliseconds*", "", "ProcessGroupNCCL.cpp; NVIDIA/nccl#1260"},
	{progress, "watchdog", "*last enqueued work: *, last completed work: *|*last enqueued nccl work: *, last completed nccl work: *", "",
		"ProcessGroupNCCL.cpp; hiyouga/LlamaFactory#6269"},
	{missing, "monitored-barrier", "*[rank *]: rank * failed to pass monitoredbarrier*|*[rank *]: ranks * failed to pass monitoredbarrier*", "monitoredBarrier",
		"ProcessGroupGloo.cpp; pytorch/pytorch#83289"},
	{missing, "desync", "*- [*] finished collective #*, but didn't join collective #*", "collective", "c10d TraceUtils.h"},

	{advice, "cuda-oom", "*CUDA out of memory*|*OutOfMemoryError*|*HIP out of memory*|*CUDA error: out of memory*|*_STATUS_ALLOC_FAILED*",
		"the GPU's memory is full: make batch or model smaller, or see with nvidia-smi who else uses it", "LUFFY#11, OEvortex/unsloth#10"},
	{advice, "duplicate-gpu", "*Duplicate GPU detected*", "two workers of a host use one GPU: let each take its own with " +
		"torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), and start one per GPU (--nproc-per-node gpu)", "NCCL init.cc"},
	{advice, "invalid-device", "*invalid device ordinal*", "the host has fewer GPUs than that: take GPU LOCAL_RANK, not RANK, and start " +
		"one worker per GPU (--nproc-per-node gpu)", "CUDA; Megvii-BaseDetection/YOLOX#968"},
	{advice, "shm", "*out of shared memory*|*shared memory(shm)*No space left*|*insufficient shared memory*|*signal: Bus error*",
		"/dev/shm or a mapped file's disk may be full; containers often have only 64 MiB (--shm-size, --ipc=host)", "pytorch/pytorch#26009"},
	{advice, "child-killed", "*is killed by signal: Killed*|*died with <Signals.SIGKILL*", "somebody killed a child of the worker, mostly the kernel " +
		"for lack of memory: see dmesg; use fewer DataLoader workers (num_workers), or raise the memory limit", "suprosanna/relationformer#18"},
	{advice, "no-module", "*ModuleNotFoundError*|*: No module named *|*No module named '*", "install the module for PROGRAM, or start muster in " +
		"the environment that has it", "CPython importlib"},
	{advice, "undefined-symbol", "*: undefined symbol: *", "that library was built for another release of PyTorch or CUDA: reinstall or rebuild it",
		"Dao-AILab/flash-attention"},
	{advice, "no-script", "*can't open file*", "check the script's path; a relative one starts at the working directory of muster", "CPython main.c"},
	{advice, "port", "*Address already in use*|*EADDRINUSE*", "another process listens on that port; choose another, or end it (ss -ltnp)", "bind(2)"},
	{advice, "disk", "*No space left on device*", "a file system is full; see df", "write(2)"},
	{advice, "files", "*Too many open files*", "raise ulimit -n", "open(2)"},
	{advice, "local-rank", "*unrecognized arguments: --local-rank*|*unrecognized arguments: --local_rank*|*required: --local_rank*|*required: --local-rank*",
		"muster passes no --local-rank as torchrun does not either: let the script read LOCAL_RANK from its environment",
		"wz0919/ScaleVLN#13, XPixelGroup/BasicSR#626"},
	{advice, "arguments", "*error: unrecognized arguments*|*error: the following arguments are required*|*usage: *",
		"the script does not take these arguments; muster's own options go before the script", "CPython argparse"},
}
