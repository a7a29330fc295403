"""The options of muster run as keywords. Written by: go test ./cmd/muster/internal/runline -run Python -update"""

from __future__ import annotations

from os import PathLike
from typing import Literal, Mapping, Optional, Sequence, TypedDict, Union


class Options(TypedDict, total=False):
    nnodes: Union[int, str]  # hosts that take part, or their smallest and largest number
    rdzv_backend: str  # how hosts meet: static, c10d, etcd or quorum; with etcd or quorum the job survives the loss of any host. A job of one host needs none of these options
    rdzv_endpoint: str  # where they meet: a host of the job (c10d), members of an etcd cluster with commas between, or three or five hosts of the job (quorum)
    rdzv_id: str  # the job's name, the same on every host (default: a new one for a job of one host)
    rdzv_conf: Union[str, Mapping[str, object]]  # settings of the backend, such as join_timeout=600,last_call_timeout=30; keep_alive_interval times keep_alive_max_attempt is how long a host may be silent; bind=ADDR and allow=CIDR,... guard the port, open_workers_store=true opens the workers' store; token_file=PATH, or cacert, cert and key, say who may join; user and password_file are for etcd, data_dir for quorum
    standalone: bool  # this host is the whole job; other rendezvous options are ignored, except --rdzv-id
    max_restarts: int  # how often the workers are started again after a failure
    monitor_interval: Union[float, str]  # accepted for torchrun's sake; a worker's end is noticed at once
    start_method: Literal["spawn", "fork", "forkserver"]  # spawn, fork or forkserver; accepted for torchrun's sake, --run-path always starts a fresh interpreter
    event_log_handler: str  # where events go: null, console (JSON lines on stderr), file (see --event-log-file) or dynamic_rendezvous
    role: str  # role of the workers, in messages and role ranks
    module: bool  # the script is a module, run as `python -m` does
    no_python: bool  # the script is a program of its own, not run by Python
    run_path: bool  # run the script with runpy.run_path and record its exceptions; takes precedence over -m and --no-python
    log_dir: Union[str, "PathLike[str]"]  # where log files go (default: a new directory under $TMPDIR); /dev/null for none
    redirects: Union[int, str, Mapping[int, int]]  # streams that go into log files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, 0:3,1:2
    tee: Union[int, str, Mapping[int, int]]  # streams that go into log files and, each line with a prefix, to the console
    log_line_prefix_template: str  # prefix of the lines of --tee; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced (default: "[${role_name}${local_rank}]:")
    local_ranks_filter: Union[str, Sequence[object]]  # only these local ranks write to the console; log files are complete
    duplicate_stdout_filters: Union[str, Sequence[object]]  # copy lines of stdout that contain one of these to filtered_stdout.log; write a comma as ,,
    duplicate_stderr_filters: Union[str, Sequence[object]]  # the same for stderr
    node_rank: int  # this host's rank; static only
    master_addr: str  # the host of rank 0; static only
    master_port: int  # the port on it; static only (default: a free one for a job of one host, else 29500)
    local_addr: str  # the address at which other hosts reach this one (default: that of the interface that reaches the endpoint)
    logs_specs: str  # only default: a Python plug-in cannot be loaded
    numa_binding: Literal["node", "socket", "exclusive", "core-complex"]  # bind each worker to CPUs near its device: node, socket, exclusive or core-complex
    signals_to_handle: Union[str, Sequence[object]]  # signals that stop the job; workers get the one received
    shutdown_timeout: Union[float, str]  # time between that signal and SIGKILL (default: $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30)
    virtual_local_rank: bool  # every worker has LOCAL_RANK=0 and sees one device, its own
    exit_code: Literal["torchrun", "worker"]  # exit status of a failed job: torchrun (1) or worker (that of the worker that failed first)
    report: Literal["muster", "torchrun", "none"]  # how the report of a failed job is printed: muster, torchrun (PyTorch's block) or none; report.json is written anyway (default: muster, and torchrun where the program is called that)
    event_log_file: Union[str, "PathLike[str]"]  # append events to this file as JSON lines, whatever the handler is; several agents may share it (default: none, and events.jsonl in the log directory with `--event-log-handler file`)
    on_event: str  # a command that sh runs for each start, hang, failure, host lost, restart and end of the job on this host, with JSON on stdin; for 30 s at most, and the job does not wait for it until its end, and then for 30 s
    collapse: bool  # with --tee, write a line that several ranks of this host write within 0.1 s, equal to the last byte, once: [default0-7]:
    ranks_filter: str  # only these global ranks write to the console, such as 0,5-7; log files are complete
    metrics_handler: Literal["null", "console"]  # where TorchElastic's metrics go: null or console (stdout)
    title: str  # what the failure report and the status page call the job (default: the script)
    exit_barrier_timeout: Union[float, str]  # how long a host that is done waits for the others
    helper_timeout: Union[float, str]  # how long what a worker leaves running after its success, such as an upload, may take; 0 for not at all
    restart_policy: Union[str, "PathLike[str]"]  # rules (YAML) for what follows from a failure: start again, stop the job, or continue without the host; check one with `muster policy check`
    preemption_signals: Union[str, Sequence[object]]  # signals on which the whole job stops: every host's workers get it at the same moment and have --shutdown-timeout, the exit status is 75 (default: none, or SIGTERM,SIGUSR1 where a scheduler says how the hosts meet)
    hang_timeout: Union[float, str]  # the workers hang if for that long none on this host has written output or used a timer, and one at least has not used the CPU, or none has begun or ended a collective while some are under way; auto learns the time from the job; 0 for never
    hang_action: Literal["kill", "notify"]  # what to do then, after evidence is kept: kill (a failure, so restarts apply) or notify (only report it)
    collectives: Literal["on", "off"]  # whether workers can be asked what PyTorch's flight recorder has kept, so that a hang names the rank that did not come to a collective; off leaves the workers' environment as torchrun has it
    autopsy_timeout: Union[float, str]  # how long evidence (stacks, threads) of workers that hang or miss a deadline is collected at most before they are killed; 0 for not at all
    warm: bool  # start the workers as forks of a Python process that has imported what they import, which is learnt, so that a restart takes a fraction of a second; where that is not safe they start as usual (Linux only)
    live: bool  # workers that use muster.live continue when others are lost or join, with what they have in memory, instead of starting again; muster on all hosts (experimental, as what PyTorch has for it)
    live_timeout: Union[float, str]  # how long a worker may take then to pause, and to resume; one that takes longer is killed
    worker_server: bool  # give each worker a path in TORCH_WORKER_SERVER_SOCKET, so that one that runs torch's control_plane.worker_main can be asked for its stacks and its flight recorder
    health_addr: Union[int, str]  # serve /healthz, /readyz, /metrics, /v1/state and a status page; a port alone is at 127.0.0.1 (default: $TORCHELASTIC_HEALTH_CHECK_PORT, else nowhere)
    health_names: Union[str, Sequence[object]]  # further host names that requests there may use, such as a proxy's; addresses, localhost and this host's own name always work
    health_check: str  # a command that must succeed before this host joins the job, run by sh; a host that fails it does not join and exits with status 69
    devices: int  # how many devices this host has, for gpu, xpu and auto; 0 for none
    config: Union[str, "PathLike[str]"]  # options in a file (YAML), by their names; the command line and variables override it
    env: Union[str, Mapping[str, Optional[object]], Sequence[object]]  # a variable for the workers, on top of muster's environment; may be repeated. K alone takes over the present value, and keeps a secret out of the command line
    env_file: Union[str, "PathLike[str]", Sequence[Union[str, "PathLike[str]"]]]  # a file of such variables: KEY=VALUE on each line, taken as it stands; blank lines and lines that begin with # do not count. May be repeated; --env overrides it
    log_format: Literal["text", "json"]  # how muster writes its own log lines: text, or json (one object on each line)
    verbose: bool  # log everything, as LOGLEVEL=DEBUG does
    quiet: bool  # log errors only, as LOGLEVEL=ERROR does


# What sets an option to False.
VARIABLES = {"standalone": "PET_STANDALONE", "module": "PET_MODULE", "no_python": "PET_NO_PYTHON", "run_path": "PET_RUN_PATH", "virtual_local_rank": "PET_VIRTUAL_LOCAL_RANK", "collapse": "MUSTER_COLLAPSE", "warm": "MUSTER_WARM", "live": "MUSTER_LIVE", "worker_server": "MUSTER_WORKER_SERVER", "verbose": "MUSTER_VERBOSE", "quiet": "MUSTER_QUIET"}
