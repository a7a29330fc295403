"""A training that goes on when ranks come and go, under ``muster run --live``::

    sampler = muster.live.Sampler(len(data), batch=64, seed=17)
    run = muster.live.join("gloo", state=[model, optimizer, sampler])   # for init_process_group
    model = run.ddp(model)                                              # for DistributedDataParallel
    while run.before(steps):
        with run:                       # one step; repeated if a rank is lost in it
            x, y = data[sampler.indices()]
            optimizer.zero_grad()
            (loss(model(x), y) * sampler.scale).backward()
            optimizer.step()

When a rank is lost, the agents agree who is left, the process group is made anew
within the same processes, and ranks that are a step behind take the state of one
that is not. A rank that joins takes it, too. run.rank, run.world and run.step say
how it is now. docs/live.md has the rules.

Where nobody leads live changes (without muster, without --live, with a torch that
cannot do it), the same script runs as with init_process_group, and says so once.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
import time
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator

from . import _livelink

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = ["ENV_SOCKET", "Run", "Sampler", "join"]

ENV_SOCKET = "MUSTER_LIVE_SOCKET"

_AGAIN = 3  # times that a step fails while nobody is lost, before its error is raised
_GRACE = 0.01  # seconds
_HOPELESS = 0.5  # after which a collective that has been ended does not end any more
_log = logging.getLogger("muster")

if TYPE_CHECKING:
    _State = Iterable[Any] | Callable[["Run"], Iterable[Any]]


def join(
    backend: str | None = None,
    *,
    state: Iterable[Any] | Callable[[Run], Iterable[Any]] = (),
    on_change: Callable[[Run], object] | None = None,
    step: int = 0,
    replica_size: int = 1,
    timeout: timedelta | None = None,
    **options: Any,
) -> Run:
    """Takes the place of torch.distributed.init_process_group, and returns when
    this process is a member and has the members' state.

    state: what a new rank has to get, objects with state_dict and
    load_state_dict: the model (not the one that run.ddp returns), optimizers,
    schedulers, samplers. on_change is called with the run after each change of
    the members, on those that were members before; it makes new data loaders,
    say, and does not communicate. step is how many steps a checkpoint had.
    timeout and options go to init_process_group.

    replica_size: how many ranks have the state in shards between them. A function
    as state gets the run, whose mesh fully_shard takes, and returns the objects.
    """
    if replica_size < 1:
        raise ValueError(f"replica_size must be 1 or more, got {replica_size}")
    if replica_size > 1 and not callable(state):
        raise TypeError("with replica_size, state has to be a function, which shards the model over run.mesh")
    dist: Any = import_module("torch.distributed")
    if timeout is not None:
        options["timeout"] = timeout
    why = _cannot(dist, backend)
    if not why:
        run = _Live(dist, state, on_change, step, replica_size)
        why = run._init(backend, options)
        if not why:
            return run
    if os.environ.get("RANK", "0") == "0":
        _log.warning("muster.live: %s, so the loss of a rank ends this job, or restarts it", why)
    dist.init_process_group(backend, **options)
    return Run(dist, state, step, replica_size)


def _cannot(dist: Any, backend: str | None) -> str:
    if not os.environ.get(ENV_SOCKET):
        return "this process is not a worker of muster run --live"
    if "enable_reconfigure" not in inspect.signature(dist.init_process_group).parameters:
        return f"PyTorch {import_module('torch').__version__} cannot change the members of a process group"
    if backend != "gloo":  # docs/internals/live.md says why
        return f"live changes work with gloo only, not with {backend or 'the default backend'}"
    return ""


class Run:
    """A training's place among the members. join makes it.

    rank and world are this process' rank and how many ranks there are; step is the
    number of steps that are completed. They change between steps only.
    """

    rank: int
    world: int
    live = False
    """Whether the members can change."""
    mesh: Any = None
    """With replica_size, the device mesh with the dimensions replicate and shard. It keeps
    the shape that it was made with."""

    def __init__(self, dist: Any, state: _State, step: int, replica_size: int) -> None:
        self._dist = dist
        self._step = step
        self.state: list[Any] = []
        if self.live:
            return
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if replica_size > 1:
            if self.world % replica_size:
                raise ValueError(f"{self.world} ranks are no whole replica groups of {replica_size}")
            device = "cpu" if dist.get_backend() == "gloo" else import_module("torch").accelerator.current_accelerator().type
            self.mesh = import_module("torch.distributed.device_mesh").init_device_mesh(
                device, (self.world // replica_size, replica_size), mesh_dim_names=("replicate", "shard"))
        self._hold(state)

    def _hold(self, state: _State) -> None:
        self.state = list(state(self) if callable(state) else state)
        for one in self.state:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise TypeError(f"state has a {type(one).__name__}, which has no state_dict and load_state_dict")
        self._samplers = [one for one in self.state if isinstance(one, Sampler)]
        for sampler in self._samplers:
            sampler._run = self

    @property
    def step(self) -> int:
        return self._step

    def before(self, steps: int) -> bool:
        """Whether there is a step to do: fewer than steps are completed. At the end
        it waits for all members, so that none is left a step behind."""
        return self._step < steps

    def ddp(self, model: Any, **options: Any) -> Any:
        """DistributedDataParallel(model, **options), which follows the members."""
        return import_module("torch.nn.parallel").DistributedDataParallel(model, **options)

    def close(self) -> None:
        """Says that the training has ended, for all ranks: nobody joins any more.
        before does it at the end; call it where the loop is left earlier."""

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if error is None:
            self._complete()
        return None

    def _complete(self) -> None:
        self._step += 1
        for sampler in self._samplers:
            sampler._advance()


class _Unformed(RuntimeError):
    """The group could not be made for new members."""


class _Live(Run):
    live = True

    def __init__(self, dist: Any, state: _State, on_change: Callable[[Run], object] | None, step: int,
                 replica_size: int) -> None:
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        super().__init__(dist, state, step, replica_size)
        self._size = replica_size
        self._groups: Any = None
        self._make: Any = state if callable(state) else None  # until this process is a member
        self._torch: Any = import_module("._livetorch", __package__)
        self._on_change = on_change
        self._ddps: list[Any] = []
        self._updated = False  # an optimizer has begun to step in this step
        self._mid_step: BaseException | None = None  # the error that left the state between two steps
        self._next = False  # has all that it takes to complete the step
        self._uuid = 0  # of the membership
        self._lineage = 0  # the UUID of the one that has completed the last step; 0: no step of the members' yet
        self._halved: tuple[BaseException, int, int, list[int]] | None = None  # of _halfway
        self._then: tuple[int, int, int] | None = None  # rank, world and uuid after this step
        self._thread = threading.get_ident()  # that trains
        self._again = 0
        self._open = True  # collectives are allowed
        self._making: object = None  # the attempt to make the group that is under way
        self._before: dict[int, int] = {}  # sockets from before it
        self._own: dict[int, int] = {}  # those of the group
        self._hold(() if callable(state) else state)

    def _hold(self, state: _State) -> None:
        super()._hold(state)
        self._rewind = self._torch.Rewind(self.state)
        optimizer: Any = import_module("torch.optim").Optimizer
        for one in self.state:
            if isinstance(one, optimizer):
                one.register_step_pre_hook(self._mark_updated)

    def _mark_updated(self, *_: Any) -> None:
        # The ranks with one shard must not step while those with another cannot: then no
        # whole state would be left.
        if self._size > 1 and not self._updated:
            try:
                self._dist.barrier()
            except RuntimeError as e:
                if not self._lost(e) or self._again >= _AGAIN:
                    raise
                self._halfway(e)
        self._updated = True

    def _halfway(self, error: BaseException) -> None:
        """Lets the members change where others may have left the barrier, and stepped. Returns
        if all complete the step, as the members that they were; otherwise raises the error."""
        rank, world, step, uuid = self.rank, self.world, self._step, self._uuid
        self._next = True
        try:
            joined = self._change(error)
        except _livelink.Gone:
            raise error from None
        finally:
            completes, self._next = self._next, False
        self._halved = error, world, step, joined
        if not completes:
            raise error
        self._then, self.rank, self.world = (self.rank, self.world, self._uuid), rank, world
        self._uuid = uuid

    def _init(self, backend: str | None, options: dict[str, Any]) -> str:
        """Makes the group and becomes a member. Returns why it cannot be done."""
        dist = self._dist
        # Not env://, whose keys depend on the restart count, which new and old
        # processes do not have in common.
        self._store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                                    wait_for_workers=False)
        store = dist.PrefixStore("muster.live", self._store)
        before = _livelink.sockets()
        dist.init_process_group(backend, store=store, rank=self.rank,
                                world_size=self.world, enable_reconfigure=True, **options)
        if not dist._supports_reconfigure():
            dist.destroy_process_group()
            return f"the backend {backend} cannot change its members"
        self._doors = _livelink.doors(before)
        if self._size > 1:
            self._groups = self._torch.Groups(store, options.get("timeout"))
        self._link = _livelink.Link(
            os.environ[ENV_SOCKET], os.environ["MUSTER_LIVE_ID"], lambda: self._step, self._abort, self._size)
        self._torch.give_up(self._hopeless)
        limit: Any = options.get("timeout") or dist.default_pg_timeout
        self._change(limit=limit.total_seconds())
        self._open = False
        self._torch.guard(lambda: self._open or self._link.over)
        return ""

    def before(self, steps: int) -> bool:
        while True:
            if self._link.stop_at <= self._step:
                self._pause()
            if self._step < steps:
                return True
            if self._link.over:
                return False
            try:
                self._open = True
                self._dist.barrier()
            except RuntimeError as e:
                if self._lost(e):
                    self._pause(e)
                elif not self._link.ended:
                    raise
            else:
                self.close()

    def ddp(self, model: Any, **options: Any) -> Any:
        if self._size > 1:
            raise ValueError("ddp does not go with replica_size; call the model that fully_shard returns")
        if not any(one is model for one in self.state):
            raise ValueError("the model is not in join's state, so a new rank would not get it")
        self._rewind = self._torch.Rewind(self.state)  # the model may have moved to a device
        made = self._torch.DDP(model, **options)
        self._ddps.append(made)
        return made

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Run:
        self._updated, self._open, self._halved, self._then = False, True, None, None
        self._thread = threading.get_ident()
        self._rewind.mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._complete()
            self._lineage = self._uuid
            self._rewind.passed()
            self._again = 0
            if self._halved is not None and self._then is not None:
                self.rank, self.world, self._uuid = self._then
                self._resume(*self._halved)
            if self._link.stop_at <= self._step:
                self._pause()
            self._open = False
            return False
        if self._halved is not None and error is self._halved[0]:
            self._resume(*self._halved)
            if self._step > self._halved[2]:
                self._rewind.forth()
            return True
        if not self._lost(error) or self._again >= _AGAIN:
            return False
        _log.info("muster.live: rank %d of %d: step %d is interrupted: %s", self.rank, self.world, self._step, error)
        was, self._mid_step = self._step, error if self._updated else None
        self._rewind.back()
        self._pause(error)
        if self._step > was:
            self._rewind.forth()
        self._open = False
        return True

    def _lost(self, error: BaseException) -> bool:
        """Whether the error is that of a collective without all its members. What an
        urgent change ends may have any text."""
        if self._link.over or not isinstance(error, RuntimeError):
            return False
        return self._link.urgent or isinstance(error, self._dist.DistError) or "/gloo/" in str(error)

    def _pause(self, error: BaseException | None = None) -> None:
        """Lets the members change, and returns when this rank may go on."""
        was, step = self.world, self._step
        broken_off = self._link.urgent
        try:
            joined = self._change(error)
        except _livelink.Gone:
            if error is not None and not self._link.ended:
                raise error from None
            return  # a group that works goes on without the agent
        self._resume(None if broken_off else error, was, step, joined)

    def _resume(self, error: BaseException | None, was: int, step: int, joined: list[int]) -> None:
        if self._step < step:
            self._rewind.further()
        self._again = self._again + 1 if error is not None and self.world == was and not joined else 0
        _log.info("muster.live: goes on as rank %d of %d at step %d", self.rank, self.world, self._step)
        self._open = False
        if self._on_change is not None:
            self._on_change(self)

    def _change(self, error: BaseException | None = None, limit: float | None = None) -> list[int]:
        link = self._link
        self._open = True
        while True:
            if error is not None and not link.urgent:
                link.failed(error)
            own = self._dist._get_reconfigure_handle()
            # Two new processes may have been told the same rank; gloo takes the rest of
            # a handle for an address, which it does not use.
            handle = f"{own}#{link.ident}"
            members = link.rest(handle, self._step if self._mid_step is None else -1, limit, self._lineage,
                                self._uuid if self._next else 0)
            try:
                self._become(members, own)
            except RuntimeError as e:
                if not (isinstance(e, (_livelink.Superseded, _Unformed)) or self._lost(e)):
                    raise
                error = e
                continue
            link.done()
            return list(members["joined"])

    def _become(self, members: dict[str, Any], own: str) -> None:
        dist, rank, handles = self._dist, members["rank"], list(members["handles"])
        handles[rank] = own
        before, making = _livelink.sockets(), object()
        # Half of what the agent allows, so that a worker whose peer is lost on the way
        # says so before it is taken for lost itself.
        limit = import_module("datetime").timedelta(seconds=members.get("timeout", 10) / 2)
        self._store.set_timeout(limit)
        late = threading.Timer(limit.total_seconds(), self._break_off, [making])
        late.daemon = True
        with self._link.guard():
            self._link.check()
            self._before, self._own, self._making = before, {}, making
        late.start()
        try:
            for door in self._doors:
                door.expect(members["world"])
            dist._reconfigure(uuid=members["uuid"], handles=handles, timeout=limit).wait()
            dist.distributed_c10d._world.pg_group_ranks[dist.group.WORLD] = {i: i for i in range(members["world"])}
            if self._groups is not None:
                self._groups.become(members, handles, limit)
        except (RuntimeError, ValueError) as e:  # ValueError: its store became another round's
            raise _Unformed(f"the members could not reach each other: {e}") from e
        finally:
            late.cancel()
            with self._link.guard():
                self._making = None
        after = _livelink.sockets()
        with self._link.guard():
            self._own = {inode: fd for inode, fd in after.items() if inode not in before}
            self._link.check()
        dist.barrier()  # gloo is content with a peer that it has connected to and that may not get further
        self.rank, self.world = rank, members["world"]
        if self._next and members["steps"][rank] == self._step:
            self._next = False
            self._rewind.back()
        if self._make is not None:
            self.mesh = self._groups and self._groups.mesh(members)
            self._hold(self._make)
            self._make = None
        self._align(members["source"], members["steps"], members["joined"])
        self._uuid = members["uuid"]
        if not self._next:
            self._lineage = members.get("lineage", 0)
        os.environ.update(members["env"])
        for made in self._ddps:
            made.remake()

    def _align(self, source: int, steps: list[int], joined: list[int]) -> None:
        """Gives all ranks the source's state. A rank that is where the source is keeps
        its own."""
        if self._mid_step is not None and (source < 0 or steps[source] < 0):
            raise RuntimeError(
                "a collective failed after the optimizer's step on all ranks; communicate before it") from self._mid_step
        group, ranks = self._dist.group.WORLD, list(range(self.world))
        if self._groups is not None:  # each takes the same shards
            group, ranks = self._groups.replicate, self._groups.same
        if source < 0 or len(ranks) == 1:
            return
        # The agents see to it that there is one that was a member, unless none was.
        first = ranks.index(source) if source in ranks else next(
            i for i, rank in enumerate(ranks)
            if steps[rank] == steps[source] and (source in joined or rank not in joined))
        if self.rank == ranks[first]:
            self._torch.send_state(self.state, self._step, group, first, self.mesh)
            return
        dicts, step = self._torch.receive_state(group, first, self.mesh)
        if self.rank not in joined and step == steps[self.rank]:
            return
        for one, found in zip(self.state, dicts):
            one.load_state_dict(found)
        self._step, self._mid_step = step, None

    def _abort(self) -> None:
        """Ends the collectives in flight; the agent's thread calls it, with the link's
        guard held. gloo knows no way (its abort does nothing, 2.15), but fails at once
        when its connections end. An operation that it begins in that very moment may
        never return, so those that are due get the time to begin before."""
        if self._making is not None:
            threading.Thread(target=self._break_off, args=[self._making], name="muster.live", daemon=True).start()
            return
        time.sleep(_GRACE)
        for inode, descriptor in _livelink.sockets().items():
            if inode in self._own:
                # gloo forgets a message that cannot be written, so that its sender waits for good. It
                # ends the other direction when it has seen the end of this one.
                _livelink.shut(inode, descriptor, socket.SHUT_RD)
        threading.Thread(target=self._end_stuck, args=[self._link.urged], name="muster.live", daemon=True).start()

    def _end_stuck(self, urged: float) -> None:
        """Ends this process if it waits for what gloo has forgotten, and nobody can tell it so:
        the others would wait until the agent does that."""
        before, same = None, 0
        while self._link.urgent and self._link.urged == urged:
            used = time.process_time()
            time.sleep(_HOPELESS)
            where = self._torch.waits_within(self._thread)
            idle = time.process_time() - used < _HOPELESS / 50
            same = same + 1 if where is not None and where == before and idle else 0
            before = where
            if same == 3:
                os.write(2, f"muster.live: rank {self.rank} waits for good, since gloo has forgotten a message of the "
                            "step that was broken off; this process ends, so that the others can go on\n".encode())
                os._exit(1)

    def _hopeless(self) -> bool:
        link = self._link
        return link.urgent and self._making is None and time.monotonic() > link.urged + _HOPELESS

    def _break_off(self, making: object) -> None:
        """Ends an attempt to make the group. gloo waits five times as long as it is told to for
        a peer: it has connected to it, tries to anew where that fails, or waits to hear from it."""
        while True:
            doors = sum(list(self._groups.doors.values()), self._doors) if self._groups is not None else self._doors
            ports = [door.port for door in doors]
            with self._link.guard():
                if self._making is not making:
                    return
                for inode, descriptor in _livelink.sockets().items():
                    if inode not in self._before:
                        _livelink.shut(inode, descriptor, socket.SHUT_RDWR, ports)
            for door in doors:
                door.knock()
            time.sleep(_GRACE)


class Sampler:
    """Which samples each rank takes in each step: a shuffled order of length samples
    per epoch, of which every sample is taken once, whatever the members do.

    With keep="global" a step has batch samples of the order, which its ranks share;
    they are the same whatever their number. An epoch is divided into steps
    of nearly equal size, batch at most. With keep="local" each rank takes batch of
    them, so that more ranks take more, and the epoch's last step what is left.

    Shares may differ by one sample. DDP averages over ranks; multiply a loss that is
    a mean over the rank's samples by scale to get the mean over all. A step may have
    fewer samples than there are ranks; ranks without a share get one that another rank
    has, and a scale of 0.
    """

    def __init__(self, length: int, batch: int, seed: int = 0, shuffle: bool = True, keep: str = "global") -> None:
        if length < 1 or batch < 1:
            raise ValueError(f"length and batch must be 1 or more, got {length} and {batch}")
        if keep not in ("global", "local"):
            raise ValueError(f"keep must be 'global' or 'local', got {keep!r}")
        self.epoch = 0
        self._length, self._batch, self._seed, self._shuffle = length, batch, seed, shuffle
        self._local = keep == "local"
        self._parts = -(-length // batch)  # steps of an epoch, of the global batch
        self._offset = 0  # samples of this epoch that are taken
        self._run: Run | None = None
        self._order: tuple[int, Any] = (-1, None)  # of which epoch

    def indices(self) -> list[int]:
        """The samples of this rank in the step that comes or is under way."""
        return self._share(self.epoch, self._offset)

    @property
    def scale(self) -> float:
        """This rank's number of samples, over the mean of all ranks."""
        run = self._member()
        all_ = self._end(self._offset) - self._offset
        return (all_ * (run.rank + 1) // run.world - all_ * run.rank // run.world) * run.world / all_

    def __iter__(self) -> Iterator[list[int]]:
        """The lists of this and the following steps without end: a batch_sampler for a
        DataLoader, which has to be made again after each change."""
        epoch, offset = self.epoch, self._offset
        while True:
            yield self._share(epoch, offset)
            epoch, offset = self._after(epoch, offset)

    def state_dict(self) -> dict[str, int]:
        return {"seed": self._seed, "epoch": self.epoch, "offset": self._offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._seed, self.epoch, self._offset = state["seed"], state["epoch"], state["offset"]
        self._order = (-1, None)

    def _share(self, epoch: int, offset: int) -> list[int]:
        run = self._member()
        all_ = self._end(offset) - offset
        begin, end = offset + all_ * run.rank // run.world, offset + all_ * (run.rank + 1) // run.world
        if begin == end:
            begin, end = offset, offset + 1
        if not self._shuffle:
            return list(range(begin, end))
        if self._order[0] != epoch:
            torch: Any = import_module("torch")
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._order = (epoch, torch.randperm(self._length, generator=generator))
        found: list[int] = self._order[1][begin:end].tolist()
        return found

    def _end(self, offset: int) -> int:
        """Where the step that begins at offset ends."""
        if self._local:
            end = offset + self._batch * self._member().world
            # A rest with which not every rank had a sample is taken along.
            return end if self._length - end >= self._member().world else self._length
        part = -(-offset * self._parts // self._length)
        return self._length * (part + 1) // self._parts

    def _after(self, epoch: int, offset: int) -> tuple[int, int]:
        end = self._end(offset)
        return (epoch, end) if end < self._length else (epoch + 1, 0)

    def _advance(self) -> None:
        self.epoch, self._offset = self._after(self.epoch, self._offset)

    def _member(self) -> Run:
        if self._run is None:
            raise RuntimeError("the sampler is not in the state of muster.live.join")
        return self._run
