"""A worker's connection to its agent under ``muster run --live``. docs/internals/live.md has the messages."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import threading
import time
from typing import Any, Callable, Container

from ._socket import _connect

VERSION = 1
NEVER = float("inf")
_MAX_TEXT = 2000


class Gone(ConnectionError):
    """The agent has closed the connection, so nobody decides about members any more."""


class Superseded(RuntimeError):
    """A newer change came while this one was under way."""


class Link:
    """Tells the agent where this worker is, and waits for its decisions.

    A thread listens. stop_at is what the training reads at each boundary: the
    number of completed steps at which it has to rest, 0 for at once, and NEVER
    while nothing changes. step returns how many steps are completed. abort ends
    the collectives in flight; the thread calls it on an urgent change.
    """

    def __init__(self, path: str, ident: str, step: Callable[[], int], abort: Callable[[], None],
                 replica_size: int = 1) -> None:
        self.stop_at = NEVER
        self.urgent = False
        self.urged = 0.0  # when it became so, by the monotonic clock
        self.change = 0  # the one whose members this worker has
        self.ident = ident
        self._step, self._abort = step, abort
        self._announced = 0
        self._members: dict[str, Any] | None = None
        self._resting = False
        self._over = ""
        self.ended = False  # the training has, for all
        self._news = threading.Condition()  # guards all of the above
        self._sending = threading.Lock()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(self._sock, path)
            self._send(type="hello", version=VERSION, id=ident, replica_size=replica_size)
        except BaseException:
            self._sock.close()
            raise
        threading.Thread(target=self._listen, name="muster.live", daemon=True).start()

    @property
    def over(self) -> bool:
        """The agent is gone, or this worker has left it."""
        return bool(self._over)

    def rest(self, handle: str, step: int, limit: float | None = None, lineage: int = 0,
             following: int = 0) -> dict[str, Any]:
        """Says that this worker is outside of collectives, and waits for the members
        of the newest change, no longer than limit seconds; lineage: the membership that has
        completed the step; following: the one in which it can complete the following step,
        too. Raises Gone and TimeoutError."""
        said = -1
        while True:
            with self._news:
                self._resting = True
                due = self._news.wait_for(lambda: self._due(said), limit)
                self._resting = False
                if not due:
                    raise TimeoutError(f"the other workers have not come to muster.live.join within {limit:g} s")
                if self._over:
                    raise Gone(self._over)
                members, announced = self._members, self._announced
                if members is not None and members["change"] >= announced and members["change"] > self.change:
                    self.change = members["change"]
                    self.stop_at, self.urgent = NEVER, False
                    return members
            said = announced
            self._send(type="ready", change=announced, handle=handle, step=step, lineage=lineage,
                       **({"next": following} if following else {}))

    def _due(self, said: int) -> bool:
        change = self._members["change"] if self._members is not None else 0
        news = change > self.change and change >= self._announced
        # A new process has no change to answer; it asks to be brought in.
        ask = said < self._announced and (self._announced > self.change or self._announced == 0)
        return bool(self._over) or news or ask

    def guard(self) -> threading.Condition:
        """Held while what abort looks at is changed."""
        return self._news

    def check(self) -> None:
        """Raises Superseded if an urgent change is waiting. The caller holds guard()."""
        if self.urgent:
            raise Superseded("the members change again")

    def failed(self, error: BaseException) -> None:
        self._send(type="failed", change=self.change, error=str(error)[:_MAX_TEXT])

    def done(self) -> None:
        self._send(type="done", change=self.change)

    def close(self) -> None:
        """The training has ended."""
        with self._news:
            gone = self._over
            self._over = gone or "closed"
            self.stop_at = NEVER
        if not gone:
            self._send(type="end")
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the agent was faster

    def _send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._sock.sendall(line, socket.MSG_NOSIGNAL)
        except OSError as e:
            self._end(f"the agent does not answer: {e.strerror or e}")

    def _listen(self) -> None:
        try:
            with self._sock.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
            self._end("the agent closed the connection")
        except Exception as e:  # the training would wait for good; abort is the backend's
            self._end(f"the agent's message cannot be read, or followed: {e!r}")
        finally:
            self._sock.close()  # the agent counts this worker out

    def _end(self, why: str) -> None:
        with self._news:
            self._over = self._over or why
            self.stop_at = NEVER
            self._news.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "where":
            self._tell(message)
            return
        with self._news:
            if kind == "over":
                self._over = self._over or "the training has ended"
                self.ended = True
                self.stop_at = NEVER
            elif kind == "members":
                if message["change"] >= self._announced and message["change"] > self.change:
                    self._announced = message["change"]
                    self._members = message
            elif kind == "change" and message["change"] > self.change:
                self._change(message["change"], message)
            self._news.notify_all()
        if kind == "change" and not message["urgent"] and message["at"] <= self._step():
            # Others may have stopped before that step, and this one wait for them in it.
            self._tell(message)

    def _tell(self, message: dict[str, Any]) -> None:
        self._send(type="at", change=message["change"], step=self._step())

    def _change(self, change: int, message: dict[str, Any]) -> None:
        if change < self._announced or (change == self._announced and self.urgent):
            return
        self._announced = change
        if message["urgent"]:
            self.stop_at, self.urgent, self.urged = 0, True, time.monotonic()
            if not self._resting:
                self._abort()
        else:
            self.stop_at = min(self.stop_at, message["at"])


def sockets() -> dict[int, int]:
    """The sockets of this process: the file descriptor by the inode's number."""
    found = {}
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # the directory's own, or closed since
        if stat.S_ISSOCK(status.st_mode):
            found[status.st_ino] = int(name)
    return found


class Door:
    """Where gloo listens for the connections of one group's pairs. A peer begins with the
    number of its pair; pairs are numbered as they are made, size of them for each membership."""

    def __init__(self, address: Any) -> None:
        self._address = address
        self._numbers = range(0)

    @property
    def port(self) -> int:
        port: int = self._address[1]
        return port

    def expect(self, size: int) -> None:
        """A membership of that size is made."""
        self._numbers = range(self._numbers.stop, self._numbers.stop + size)

    def knock(self) -> None:
        """Takes the place of all peers, and hangs up. A pair that waits for one fails."""
        for number in self._numbers:
            try:
                with socket.create_connection(self._address[:2], 1) as sock:
                    sock.sendall(struct.pack("=q", number))
            except OSError:
                return


def doors(before: dict[int, int]) -> list[Door]:
    """Those that were made since some sockets were listed."""
    found = []
    for inode, descriptor in sockets().items():
        if inode not in before:
            try:
                with socket.socket(fileno=os.dup(descriptor)) as sock:
                    if sock.family != socket.AF_UNIX and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        found.append(Door(sock.getsockname()))
            except OSError:
                pass  # closed since
    return found


def shut(inode: int, descriptor: int, how: int, but: Container[int] = ()) -> None:
    """Ends a network connection, as if its host were gone, unless its local port is one
    of some. What waits for it, in any thread, fails at once."""
    try:
        own = os.dup(descriptor)
    except OSError:
        return  # closed already
    try:
        if os.fstat(own).st_ino == inode:  # and the number does not belong to something else by now
            with socket.socket(fileno=os.dup(own)) as sock:
                # gloo ends the process if one on which it listens fails.
                if (sock.family != socket.AF_UNIX and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                        and sock.getsockname()[1] not in but):
                    sock.shutdown(how)
    except OSError:
        pass  # its peer was faster
    finally:
        os.close(own)
