"""Stands in for PyTorch where `muster doctor` looks for it: the real one takes
seconds to import, on each host."""

__version__ = "2.15.0"


class version:
    cuda = None


class cuda:
    @staticmethod
    def device_count():
        return 0
