"""How the engine's threads share work, under the sanitizer that sees two of them at one place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent / "native"
ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "extensions" / "int8_gemm" / "cpu"


@pytest.mark.parametrize(
    ("program", "source", "said"),
    [("count", "machine", "every pair and every item once\n"),
     ("blocks", "blocks", "blocks are kept and used again\n")],
)  # fmt: skip
def test_threads_share_nothing_by_chance(tmp_path: Path, program: str, source: str, said: str):
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-g1", "-pthread", "-Wall"]
    compiler += ["-Wextra", "-fsanitize=thread", f"-I{SOURCES}", f"-I{ROOT / 'eggroll' / 'native'}"]
    empty = [*compiler, "-x", "c++", "-", "-o", str(tmp_path / "empty")]
    if subprocess.run(empty, input=b"int main() {}", check=False, capture_output=True).returncode:
        pytest.skip(f"{compiler[0]} has no sanitizer of threads")
    built = tmp_path / program
    sources = [NATIVE / f"{program}.cpp", SOURCES / f"{source}.cpp"]
    subprocess.run([*compiler, *sources, "-o", built], check=True)
    env = os.environ | {"TSAN_OPTIONS": "allocator_may_return_null=1"}
    done = subprocess.run([built], capture_output=True, text=True, check=False, env=env)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer of threads does not run on this kernel")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == said


def test_a_forked_child_has_threads_of_its_own():
    words = (
        "import os; from eggroll import _extension; native = _extension.load(); native.peak(2)\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    alone = threads() == 1\n"
        "    os._exit(0 if native.peak(2) > 0 and alone and threads() == 2 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0 and native.peak(2) > 0"
    )
    if not Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc")
    subprocess.run([sys.executable, "-c", words], check=True, timeout=60)


@pytest.mark.parametrize("engine", ["cpu", "portable"])
def test_a_child_forked_after_the_first_use_trains_on(engine: str):
    """MLX's thread of a stream does not survive a fork either, and the child waited for it."""
    words = (
        "import os, signal, numpy as np, mlx.core as mx\n"
        "from networks import random_case\n"
        "from eggroll.engines import ENGINES\n"
        f"case = random_case(8); engine = ENGINES[{engine!r}](case.program)\n"
        "def scores(): return np.array(mx.abs(engine.evaluate(engine.prepare(case.leaves), "
        "case.slices, case.batch)[0]))\n"
        "first = scores(); child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(20)\n"
        "    os._exit(0 if (scores() == first).all() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert (scores() == first).all()"
    )
    folder = Path(__file__).parent
    subprocess.run([sys.executable, "-c", words], check=True, timeout=180, cwd=folder)


def test_memory_of_large_arrays_is_kept_for_the_next():
    """While a copy shares it too, and in a forked child; in a process of its own."""
    words = (
        "import os, numpy as np\n"
        "from eggroll import _extension; native = _extension.load()\n"
        "def large(): return native.draws([5], [1 << 32], 0, [1 << 20], 1, True)\n"
        "def blocks(): return tuple(bytes >> 20 for bytes in native.blocks())\n"
        "first, right = large(), np.array(large())\n"
        "assert blocks() == (4, 4), blocks()\n"
        "copy = first; del first\n"
        "assert blocks() == (4, 4) and np.array_equal(copy, right), blocks()\n"
        "other = large()\n"
        "assert blocks() == (8, 0) and np.array_equal(other, right), blocks()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    del copy\n"
        "    os._exit(0 if np.array_equal(large(), right) and blocks() == (4, 4) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "del copy, other\n"
        "assert blocks() == (0, 8), blocks()\n"
    )
    subprocess.run([sys.executable, "-c", words], check=True, timeout=60)
