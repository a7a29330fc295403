"""The connection of muster.live to the agent."""

import os
import socket
import tempfile
import threading
import unittest

import muster._livelink as livelink

WAIT = 20


class TestLink(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "live")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            self.link = livelink.Link(path, "a", lambda: 7, self.abort)
            self.agent, _ = server.accept()
        self.addCleanup(self.agent.close)

    def abort(self):
        raise RuntimeError("the backend cannot abort")

    def test_senseless(self):
        """Who rests does not wait for an agent whose message has ended the thread that listens."""
        with self.agent.makefile("rb") as lines:

            def say():
                for _ in range(2):  # hello, ready
                    lines.readline()
                self.agent.sendall(b"[]\n")

            agent = threading.Thread(target=say)
            agent.start()
            with self.assertRaisesRegex(livelink.Gone, "cannot be read"):
                self.link.rest("handle", 7, WAIT)
            agent.join()

    def test_broken_abort(self):
        """Who cannot end its collectives leaves the agent, and says why."""
        self.agent.sendall(b'{"type": "change", "change": 1, "urgent": true, "at": 0}\n')
        with self.agent.makefile("rb") as lines:
            self.assertEqual(1, len(list(lines)))  # hello, and the end
        with self.assertRaisesRegex(livelink.Gone, "the backend cannot abort"):
            self.link.rest("handle", 7, WAIT)

    def test_two_changes_at_once(self):
        """Who hears of a membership and of the next change in one go rests for that once, not all the time."""
        with self.agent.makefile("rb") as lines:
            lines.readline()  # hello
            self.link._take({"type": "members", "change": 1})
            self.link._take({"type": "change", "change": 2, "urgent": False, "at": 9})
            with self.assertRaises(TimeoutError):
                self.link.rest("handle", 7, 0.05)
            self.link._sock.shutdown(socket.SHUT_RDWR)
            self.assertEqual(1, len(list(lines)))  # ready


if __name__ == "__main__":
    unittest.main()
