"""Has forks.py run `python3 -u SCRIPT …` in a fork, passes signals on to it, and ends as it does. It is itself the
process that the agent has started: leader of the group and the session, and in the control group."""

import _socket
import json
import os
import signal
import struct
import sys

if sys.argv[1] != "-u" or sys.argv[2].startswith("-"):
    os.execv(os.environ["FORKS_PYTHON"], [os.environ["FORKS_PYTHON"], *sys.argv[1:]])
signals = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2
signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # the script may run before they can be passed on
forks = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
forks.connect(os.environ["FORKS"])
request = json.dumps({"argv": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()}).encode()
forks.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))])
answer = forks.recv(16)


def pass_on(number, _):
    try:
        os.kill(int(answer), number)
    except ProcessLookupError:
        pass  # its status is on the way


for number in signals:
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, pass_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
ended = answer if answer.startswith(b"=") else forks.recv(16)
status = int(ended[1:] or sys.exit("forks.py has ended"))
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
