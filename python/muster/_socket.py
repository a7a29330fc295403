"""One connection to the agent's timer socket. docs/internals/timers.md has the frames."""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

VERSION = 1
ACQUIRE, RELEASE, HEARTBEAT = 1, 2, 3
DONE, MALFORMED, REFUSED, BUSY = 0, 1, 2, 3

MAX_SCOPE = 4096
MAX_ANSWER = 4 + 512

# version, kind, signal, 0, pid (0: the sender), value, length of the scope
REQUEST_TIME = struct.Struct("!BBBxIdH")
REQUEST_STEP = struct.Struct("!BBBxIqH")
_OK = struct.pack("!BBH", VERSION, DONE, 0)
_MAX_PATH = 107


class TimerError(ConnectionError):
    """The agent's timers cannot be reached, or refused a request."""


class Connection:
    """A connected socket. Not for two threads at once; TimerClient sees to that."""

    __slots__ = ("_flags", "_later", "_sock")

    def __init__(self, path: str, timeout: float) -> None:
        # Not at the top: it is most of what importing this would cost, and a
        # process without MUSTER_TIMER_SOCKET never needs it.
        import socket

        self._flags = socket.MSG_NOSIGNAL  # some programs let SIGPIPE end them
        self._later = socket.MSG_DONTWAIT
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Time limits of the kernel: Python's own would ask poll(2) before
            # every call, which costs as much as the call.
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            sock.setblocking(True)
            _connect(sock, path)
        except BaseException:
            sock.close()
            raise
        self._sock = sock

    def request(self, frame: bytes) -> None:
        """Sends a frame and waits for its answer.

        Raises TimerError with the agent's words when it refused, TimeoutError
        when it did not answer in time, and OSError when the connection is gone.
        """
        try:
            self._sock.send(frame, self._flags)
            answer = self._sock.recv(MAX_ANSWER)
        except BlockingIOError:
            self._undo(frame)
            raise TimeoutError from None
        except OSError:
            # What the agent said before it hung up lies behind the error.
            answer = self._goodbye()
            if not answer:
                raise
        except BaseException:
            self._undo(frame)
            raise
        if answer == _OK:
            return
        if not answer:
            raise ConnectionResetError("the agent closed the timer connection")
        raise TimerError(_words(answer))

    def post(self, frame: bytes) -> None:
        """Sends a frame that has no answer. Never waits: raises BlockingIOError
        when the agent is far behind."""
        self._sock.send(frame, self._flags | self._later)

    def close(self) -> None:
        self._sock.close()

    def _undo(self, frame: bytes) -> None:
        # The agent may yet read an acquire that its caller no longer waits
        # for, and would end a process that never entered the block.
        if frame[1] == ACQUIRE:
            try:
                self.post(frame[:1] + bytes([RELEASE]) + frame[2:])
            except OSError:
                pass

    def _goodbye(self) -> bytes:
        try:
            return self._sock.recv(MAX_ANSWER, self._later)
        except OSError:
            return b""


def _words(answer: bytes) -> str:
    if len(answer) < 4:
        return f"the agent's answer to a timer request is cut short: {answer!r}"
    version, status, length = struct.unpack_from("!BBH", answer)
    if version != VERSION:
        return f"the agent speaks version {version} of the timer protocol, this client version {VERSION}"
    text = answer[4 : 4 + length].decode("utf-8", "replace")
    return text or f"the agent refused a timer request with status {status}"


def _connect(sock: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= _MAX_PATH or not sys.platform.startswith("linux"):
        sock.connect(path)
        return
    # The kernel takes no longer name, but it takes one that leads through an
    # open directory.
    where, name = os.path.split(path)
    directory = os.open(where, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)
