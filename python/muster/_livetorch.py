"""What muster.live does with PyTorch: the state of a training, and DDP made again."""

from __future__ import annotations

import functools
import io
import pickle
from importlib import import_module
from typing import Any, Callable

torch: Any = import_module("torch")
dist: Any = import_module("torch.distributed")
_DDP: Any = import_module("torch.nn.parallel").DistributedDataParallel

_BUCKET = 64 << 20


_COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend",
    "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send",
)


def guard(allowed: Callable[[], bool]) -> None:
    """Has the functions of torch.distributed raise an error while the group of all
    members may not be used: what one rank says outside of a step would meet what
    others say within one, as a rank that has joined goes straight to the step."""

    def guarded(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if options.get("group") in (None, dist.group.WORLD) and not allowed():
                raise RuntimeError(
                    f"torch.distributed.{name} outside of a step: a rank that joins later would take it for a part of "
                    "its step; do it within 'with run', or without the process group before muster.live.join")
            return function(*args, **options)

        call._muster_live = True  # type: ignore[attr-defined]
        return call

    for module in (dist, dist.distributed_c10d):
        for name in _COLLECTIVES:
            function = getattr(module, name, None)
            if function is not None and not hasattr(function, "_muster_live"):
                setattr(module, name, guarded(name, function))


class DDP(_DDP):  # type: ignore[misc]
    """DistributedDataParallel that can be made again, in place, for other members.

    It does not compare nor send the parameters when it is made: the members have
    the same state by then.
    """

    def __init__(self, module: Any, **options: Any) -> None:
        super().__init__(module, init_sync=False, **options)
        self._options = options
        self._comm_hook: tuple[Any, Any] | None = None

    def register_comm_hook(self, state: object, hook: Any) -> None:
        super().register_comm_hook(state, hook)
        self._comm_hook = (state, hook)

    def remake(self) -> None:
        kept = {name: value for name, value in self.__dict__.items() if name.endswith("_hooks")}
        module, options, hook = self.module, self._options, self._comm_hook
        training: bool = self.__dict__["training"]
        self.__dict__.clear()  # ends the old reducer, and its hooks on the parameters
        self.__init__(module, **options)  # type: ignore[misc]
        self.__dict__.update(kept)
        self.training = training
        if hook is not None:
            self.register_comm_hook(*hook)


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Any] = []
        self._index: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_meta:
            return None
        if id(value) not in self._index:
            self._index[id(value)] = len(self.tensors)
            self.tensors.append(value)  # which keeps its id
        return self._index[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, pid: Any) -> Any:
        return self._tensors[pid]


def send_state(state: list[Any], step: int, rank: int) -> None:
    """Sends the state of this rank to all. They call receive_state."""
    data = io.BytesIO()
    pickler = _Pickler(data)
    pickler.dump([one.state_dict() for one in state])
    shapes = [(tuple(t.shape), t.dtype, t.device.type) for t in pickler.tensors]
    dist.broadcast_object_list([(data.getvalue(), shapes, step)], src=rank)
    _broadcast([t.detach().contiguous() for t in pickler.tensors], rank)


def receive_state(source: int) -> tuple[list[dict[str, Any]], int]:
    """Returns the state dicts and the step of the source. Nothing has changed here
    until the caller loads them, so the source may be lost at any time."""
    head: list[Any] = [None]
    dist.broadcast_object_list(head, src=source)
    data, shapes, step = head[0]
    tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in shapes]
    _broadcast(tensors, source)
    return _Unpickler(data, tensors).load(), step


def _broadcast(tensors: list[Any], source: int) -> None:
    # As bytes, so that those of all types share a few large messages, and types
    # that a backend does not know pass, too.
    flat = [t.reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    if flat:
        dist._broadcast_coalesced(dist.group.WORLD, flat, _BUCKET, source)


class Rewind:
    """Brings back what a step changes before its last collective: torch's random
    state, the buffers of modules, and gradients."""

    def __init__(self, state: list[Any]) -> None:
        self._modules = [one for one in state if isinstance(one, torch.nn.Module)]
        self._buffers: list[Any] = []
        for root in self._modules:
            for module in root.modules():
                self._buffers += [
                    buffer for name, buffer in module._buffers.items()
                    if buffer is not None and name not in module._non_persistent_buffers_set
                ]
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._random = self._ahead = self._now()

    def mark(self) -> None:
        self._random = self._now()
        if self._buffers:
            self._copy(self._kept, self._buffers)

    def back(self) -> None:
        """To where mark was."""
        self._ahead = self._now()
        self._set(self._random)
        if self._buffers:
            self._copy(self._buffers, self._kept)
        for module in self._modules:
            module.zero_grad(set_to_none=True)

    def forth(self) -> None:
        """Takes back the random state: the step is not repeated, since another rank has
        completed it."""
        self._set(self._ahead)

    @staticmethod
    def _now() -> Any:
        return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    @staticmethod
    def _set(state: Any) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])

    @staticmethod
    def _copy(to: list[Any], source: list[Any]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(to, source)
