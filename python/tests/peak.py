"""How much memory a piece of work takes at its most."""
import gc
import pathlib
import re

import pytest

_STATUS, _RESET = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def _mebibytes(name):
    return int(re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.M)[1]) / 1024


def peak_of(work, between=gc.collect):
    """MiB above what the process has, at the worst moment of work(), after a first time that does not count, and after between()."""
    work()
    between()
    try:
        _RESET.write_text("5")  # the kernel's record of the peak begins anew
    except OSError as error:
        pytest.skip(f"the peak cannot be told here: {error}")
    before = _mebibytes("VmRSS")
    kept = work()
    del kept
    return _mebibytes("VmHWM") - before
