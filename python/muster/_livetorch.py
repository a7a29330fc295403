"""What muster.live does with PyTorch: the state of a training, and DDP made again."""

from __future__ import annotations

import ctypes
import functools
import inspect
import io
import os
import pickle
import sys
from datetime import timedelta
from importlib import import_module
from typing import Any, Callable

from . import _livelink

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
        names = list(inspect.signature(function).parameters)
        at = names.index("group") if "group" in names else len(names)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            group = args[at] if len(args) > at else options.get("group")
            if group in (None, dist.group.WORLD) and not allowed():
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


def give_up(hopeless: Callable[[], bool]) -> None:
    """Has who waits for a collective of gloo's wait no longer once that is hopeless. gloo forgets
    a message that it has begun to send when its receiver is lost, and the collective does not end
    before the time limit of the group. One that is left alone disturbs others no more than this:
    a barrier waits for it, and so does the end of its group."""
    c10d = dist.distributed_c10d
    types = import_module("torch._C._distributed_c10d").OpType
    single = {int(types.SEND), int(types.RECV), int(types.RECVANYSOURCE)}  # a time limit of theirs ends the group
    wait, barrier = c10d.Work.wait, c10d.ProcessGroup.barrier
    if hasattr(wait, "_muster_live"):
        return
    forever, a_while = timedelta(), timedelta(seconds=0.1)

    def patient(self: Any, timeout: timedelta = forever) -> Any:
        if timeout != forever or self._get_op_type() in single:
            return wait(self, timeout)
        while True:
            try:
                return wait(self, a_while)
            except RuntimeError:
                if self.is_completed():
                    return wait(self, forever)  # or its own error
                if hopeless():
                    for group in c10d._world.pg_map:  # which never end now
                        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
                    raise RuntimeError("/gloo/ waits for a rank that is lost") from None

    def meet(self: Any, *args: Any, **options: Any) -> Any:
        return self.allreduce([torch.zeros(1)]) if str(dist.get_backend(self)) == "gloo" else barrier(self, *args, **options)

    patient._muster_live = True  # type: ignore[attr-defined]
    c10d.Work.wait, c10d.ProcessGroup.barrier = patient, meet


_WITHIN = tuple(os.path.join(os.path.dirname(torch.__file__), *path) for path in (
    ("autograd", "graph.py"), ("nn", "parallel", "distributed.py"), ("distributed", "distributed_c10d.py")))


def waits_within(thread: int) -> Any:
    """Where a thread may wait for a collective within C++, as the backward pass of DDP does; None if it is elsewhere."""
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti) if frame is not None and frame.f_code.co_filename in _WITHIN else None


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


def group_uuid(members: int, number: int) -> int:
    """The UUID of one group of a membership. PyTorch takes what fits into 64 bits with a sign."""
    return ((members << 20) + number) % (1 << 63)


class Groups:
    """The process groups of a rank in a job of replica groups: shard has those with which it
    shares one copy of the state, replicate those with the same shards in each copy."""

    def __init__(self, store: Any, timeout: Any) -> None:
        for name in ("torch._dynamo", "torch.distributed.fsdp"):
            import_module(name)  # which takes seconds, and others wait when the optimizer does it
        self._store, self._timeout = store, timeout or dist.distributed_c10d.default_pg_timeout
        self.shard: Any = None
        self.replicate: Any = None
        self.same: list[int] = []  # the ranks of replicate
        self.doors: dict[str, list[_livelink.Door]] = {}  # of each

    def become(self, members: dict[str, Any], handles: list[str], limit: Any) -> None:
        """Follows the default group, which is that of members by now."""
        table, rank = members["groups"], members["rank"]
        row = next(i for i, ranks in enumerate(table) if rank in ranks)
        place = table[row].index(rank)
        self.same = [ranks[place] for ranks in table]
        self.shard = self._one(self.shard, "shard", rank, table[row], row, members["uuid"], handles, limit)
        self.replicate = self._one(self.replicate, "replicate", rank, self.same, place, members["uuid"], handles, limit)

    def _one(self, group: Any, name: str, rank: int, ranks: list[int], number: int, uuid: int, handles: list[str],
             limit: Any) -> Any:
        c10d, own = dist.distributed_c10d, ranks.index(rank)
        if group is None:
            before = _livelink.sockets()
            group, _ = c10d._new_process_group_helper(
                len(ranks), own, ranks, dist.get_backend(), self._store, group_name=f"muster.live.{name}",
                timeout=self._timeout, enable_reconfigure=True)
            self.doors[name] = _livelink.doors(before)
        for door in self.doors[name]:
            door.expect(len(ranks))
        # gloo needs nothing of the others' handles but that they differ.
        chosen = [handles[i] for i in ranks]
        chosen[own] = dist._get_reconfigure_handle(group)
        dist._reconfigure(uuid=group_uuid(uuid, number), handles=chosen, group=group, timeout=limit).wait()
        c10d._world.pg_group_ranks[group] = {one: i for i, one in enumerate(ranks)}
        return group

    def mesh(self, members: dict[str, Any]) -> Any:
        return import_module("torch.distributed.device_mesh").DeviceMesh.from_group(
            [self.replicate, self.shard], "cpu", torch.tensor(members["groups"]), mesh_dim_names=("replicate", "shard"))


def _sharded() -> Any:
    return import_module("torch.distributed.tensor").DTensor


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, mesh: Any) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Any] = []
        self._index: dict[int, int] = {}
        self._mesh = mesh
        self._sharded = _sharded() if mesh is not None else ()

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, self._sharded):
            if value.device_mesh != self._mesh:
                raise TypeError("state has a tensor that is not sharded over run.mesh")
            own = value.detach().to_local()
            return self.persistent_id(own), value.placements, value.shape, value.stride()
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided or value.is_meta:
            return None
        if id(value) not in self._index:
            self._index[id(value)] = len(self.tensors)
            self.tensors.append(value)  # which keeps its id
        return self._index[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[Any], mesh: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors, self._mesh = tensors, mesh

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, int):
            return self._tensors[pid]
        own, placements, shape, stride = pid
        return _sharded().from_local(
            self._tensors[own], self._mesh, placements, run_check=False, shape=shape, stride=stride)


def send_state(state: list[Any], step: int, group: Any, rank: int, mesh: Any = None) -> None:
    """Sends the state of this rank of the group to all in it. They call receive_state. Of tensors
    that are sharded over the mesh it sends this rank's shard."""
    data = io.BytesIO()
    pickler = _Pickler(data, mesh)
    pickler.dump([one.state_dict() for one in state])
    shapes = [(tuple(t.shape), t.dtype, t.device.type) for t in pickler.tensors]
    _broadcast_head((data.getvalue(), shapes, step), group, rank)
    _broadcast([t.detach().contiguous() for t in pickler.tensors], group, rank)


def receive_state(group: Any, source: int, mesh: Any = None) -> tuple[list[dict[str, Any]], int]:
    """Returns the state dicts and the step of the source. Nothing has changed here
    until the caller loads them, so the source may be lost at any time."""
    data, shapes, step = _broadcast_head(None, group, source)
    tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in shapes]
    _broadcast(tensors, group, source)
    return _Unpickler(data, tensors, mesh).load(), step


def _broadcast_head(head: Any, group: Any, source: int) -> Any:
    """Returns the source's."""
    data = torch.frombuffer(bytearray(pickle.dumps(head)), dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    _spread(size, group, source)
    if dist.get_rank(group) != source:
        data = torch.empty(size.item(), dtype=torch.uint8)
    _spread(data, group, source)
    return pickle.loads(data.numpy().tobytes())


def _broadcast(tensors: list[Any], group: Any, source: int) -> None:
    # As bytes, so that those of all types share a few large messages, and types
    # that a backend does not know pass, too.
    flat = [t.reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    while flat:
        bucket = [flat.pop(0)]
        room = _BUCKET - bucket[0].numel()
        while flat and flat[0].numel() <= room:
            room -= flat[0].numel()
            bucket.append(flat.pop(0))
        if len(bucket) == 1 and not bucket[0].is_cuda:
            _spread(bucket[0], group, source)
            continue
        sizes = [t.numel() for t in bucket]
        own = dist.get_rank(group) == source
        whole = torch.cat([t.cpu() for t in bucket]) if own else torch.empty(sum(sizes), dtype=torch.uint8)
        _spread(whole, group, source)
        if not own:
            for t, part in zip(bucket, whole.split(sizes)):
                t.copy_(part)


_answer: Any = None  # under way to the rank that the last tensor came from


def _spread(tensor: Any, group: Any, source: int) -> None:
    """Broadcasts over gloo, in a tree of messages. A broadcast of gloo's would not do: whoever
    sends and waits for nothing but that does not notice when the receiver is lost. So each
    receiver answers."""
    global _answer
    size = dist.get_world_size(group)
    place = (dist.get_rank(group) - source) % size
    bit = 1
    while bit < size and not place & bit:
        bit <<= 1
    if place:
        above = (place - bit + source) % size
        dist.recv(tensor, group=group, group_src=above)
        _answer = dist.isend(torch.zeros(1, dtype=torch.uint8), group=group, group_dst=above)
    below = []
    while bit > 1:
        bit >>= 1
        if place + bit < size:
            below.append((place + bit + source) % size)
    sending = [dist.isend(tensor, group=group, group_dst=rank) for rank in below]
    for rank in below:
        dist.recv(torch.empty(1, dtype=torch.uint8), group=group, group_src=rank)
    del sending  # which has arrived


class Rewind:
    """Brings back what a step changes before its last collective: torch's random
    state, the buffers of modules, gradients, and what fully_shard has under way."""

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
        self._random = self._ahead = self._last = self._now()

    def mark(self) -> None:
        self._random = self._now()
        if self._buffers:
            self._copy(self._kept, self._buffers)

    def passed(self) -> None:
        self._last = self._random

    def back(self) -> None:
        """To where mark was."""
        self._ahead = self._now()
        self._set(self._random)
        if self._buffers:
            self._copy(self._buffers, self._kept)
        for root in self._modules:
            for module in root.modules():
                if hasattr(module, "reset_iter_state") and module._get_fsdp_state()._is_root:
                    module.reset_iter_state()
            root.zero_grad(set_to_none=True)

    def forth(self) -> None:
        """Takes back the random state: the step is not repeated, since another rank has
        completed it."""
        self._set(self._ahead)

    def further(self) -> None:
        """To the step before, which another rank has not completed."""
        self._set(self._last)

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
