"""A limit on the address space: refused in a sentence, or ended with one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from eggroll.cli import command as limits
from eggroll.errors import InputError
from eggroll.training.config import Config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")

# What ends a process without an exception: in MLX, in C++, in a library like OpenBLAS.
ENDS = {
    "null pointer": "mx.array(np.zeros(1 << 29, np.int8))",
    "abort": "os.abort()",
    "exit of a library": "ctypes.CDLL(None).exit(1)",
    "import": "raise ImportError('failed to map segment')",
    "memory": "np.zeros(1 << 33, np.int8)",
}
SCRIPT = """
import ctypes, os, resource, sys
import mlx.core as mx, numpy as np
from eggroll.cli import command as cli
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (800 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def main():
    {}
    return 0
sys.exit(cli.run(main))
"""


@pytest.mark.parametrize("name", ENDS)
def test_a_process_that_its_limit_ends_says_so(name: str):
    command = [sys.executable, "-c", SCRIPT.format(ENDS[name])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("error: memory ran out")
    assert done.stderr.count("\n") == 1


def test_a_run_that_the_limit_leaves_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "address_space", lambda: 1 << 20)
    with pytest.raises(InputError, match=r"need some .* GiB and the limit of `ulimit -v` leaves"):
        Config().check()
