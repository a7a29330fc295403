"""A LaunchConfig as the binary's command line."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Tuple

from .config import LaunchConfig
from .errors import ConfigError

START_METHODS = ("spawn", "fork", "forkserver")
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # the default of --signals-to-handle


def flags(config: LaunchConfig, log_dir: str) -> List[str]:
    """The options for ``muster run``, all of one word each. Raises ConfigError with
    everything that has no spelling there; what values mean is checked by the binary."""
    line: List[str] = []
    bad: List[str] = []

    def add(name: str, value: Any) -> None:
        line.append("--%s=%s" % (name, value))

    for name in ("min_nodes", "max_nodes", "nproc_per_node", "max_restarts"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int):
            bad.append("%s must be a whole number, got %r" % (name, value))
    if config.start_method not in START_METHODS:
        bad.append("start_method must be one of %s, got %r" % (", ".join(START_METHODS), config.start_method))
    add("nnodes", "%s:%s" % (config.min_nodes, config.max_nodes))
    add("nproc-per-node", config.nproc_per_node)
    add("role", config.role)
    add("rdzv-id", config.run_id)
    add("max-restarts", config.max_restarts)
    add("monitor-interval", config.monitor_interval)
    add("shutdown-timeout", config.shutdown_timeout)
    add("signals-to-handle", config.signals_to_handle)
    add("event-log-handler", config.event_log_handler)
    add("log-dir", log_dir)
    if config.local_addr:
        add("local-addr", config.local_addr)
    if config.log_line_prefix_template:
        add("log-line-prefix-template", config.log_line_prefix_template)
    for stream in ("stdout", "stderr"):
        filters = getattr(config, "duplicate_%s_filters" % stream)
        if filters:
            add("duplicate-%s-filters" % stream, ",".join(f.replace(",", ",,") for f in filters))
    if config.virtual_local_rank:
        line.append("--virtual-local-rank")
    if config.numa_options is not None:
        add("numa-binding", _numa(config.numa_options))
    _logs(config.logs_specs, config.nproc_per_node, add, bad)
    _rendezvous(config, add, bad)
    if bad:
        raise ConfigError("; ".join(bad), 2)
    return line


def split(line: List[str]) -> Tuple[List[str], Dict[str, str]]:
    """Splits off what other users of the host may not read: returns the rest of the command
    line, and the environment for it, which the binary does not pass on."""
    name = "--rdzv-conf="
    secret = [o for o in line if o.startswith(name) and any(map(_names_secret, o[len(name):].split(",")))]
    return [o for o in line if o not in secret], {"PET_RDZV_CONF": o[len(name):] for o in secret}


def _names_secret(pair: str) -> bool:
    """Whether the key of a pair names a secret, by its sound, since a misspelt one does so
    too. What is read from a file is named by the file's path."""
    key = pair.split("=")[0].strip()
    return key not in ("token_file", "password_file") and any(word in key.lower() for word in ("pass", "token", "secret"))


def alone(config: LaunchConfig) -> bool:
    """Whether the job is this host's alone, though torch's default backend is named."""
    return config.max_nodes == 1 and not config.rdzv_endpoint and config.rdzv_backend in ("etcd", "static", "")


def _rendezvous(config: LaunchConfig, add: Any, bad: List[str]) -> None:
    settings = dict(config.rdzv_configs)
    rank = settings.pop("rank", None)  # torch's static backend has it here
    if settings.get("timeout") == 900:
        del settings["timeout"]  # LaunchConfig's default, and the binary's where a backend reads it
    if alone(config):
        # The binary's own default: this host, at a free port.
        add("rdzv-backend", "static")
    else:
        add("rdzv-backend", config.rdzv_backend)
        add("rdzv-endpoint", config.rdzv_endpoint)
        if rank is not None and config.rdzv_backend == "static":
            add("node-rank", rank)
    add("rdzv-conf", pairs("rdzv_configs", settings, bad))


def pairs(name: str, settings: Mapping[str, Any], bad: List[str]) -> str:
    """The argument of --rdzv-conf, from what was given as name."""
    words = []
    for key, value in settings.items():
        if value is None:
            continue  # not set, as in torch
        text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
        if not text or (("," in text or "," in key or "=" in key) and key != "allow"):
            bad.append("%s[%r]: %s cannot be a value of --rdzv-conf, which is key=value,key=value" % (
                name, key, "***" if _names_secret(key) else repr(value)))
        words.append("%s=%s" % (key, text))
    return ",".join(words)


def _numa(options: Any) -> str:
    mode = getattr(options, "affinity_mode", options)
    return str(getattr(mode, "value", mode))


def _logs(specs: Any, nproc: int, add: Any, bad: List[str]) -> None:
    """Reads muster's LogsSpecs or torch's, which has the same attributes."""
    reify = getattr(type(specs), "reify", None)
    if reify is not None and getattr(reify, "__module__", "") != "torch.distributed.elastic.multiprocessing.api":
        bad.append(
            "logs_specs: %s has a reify of its own, which muster does not call; "
            "leave it out, and find the files in the log directory" % type(specs).__name__
        )
    for name, attribute in (("redirects", "_redirects"), ("tee", "_tee")):
        add(name, streams("logs_specs: " + name, getattr(specs, attribute, 0), bad))
    ranks = getattr(specs, "_local_ranks_filter", None)
    if ranks:
        add("local-ranks-filter", ",".join(str(rank) for rank in sorted(ranks)))


def streams(name: str, value: Any, bad: List[str]) -> str:
    """The argument of --redirects or --tee, from what was given as name."""
    try:
        if isinstance(value, Mapping):
            return ",".join("%d:%d" % (rank, int(std)) for rank, std in value.items()) or "0"
        return str(int(value))
    except (TypeError, ValueError):
        bad.append("%s is neither a Std nor a dict of them by local rank: %r" % (name, value))
        return ""


def log_dir(specs: Any) -> str:
    """The directory that the specs name, absolute; "" if none."""
    path = getattr(specs, "_root_log_dir", None) or getattr(specs, "root_log_dir", None) or ""
    return os.path.abspath(path) if path else ""


def keeps_no_output(specs: Any) -> bool:
    """Whether no stream goes to a file."""
    return not getattr(specs, "_redirects", 0) and not getattr(specs, "_tee", 0)
