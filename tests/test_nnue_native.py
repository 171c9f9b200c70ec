"""The loader of experiments/nnue without Python: under sanitizers, which see leaks and races."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random

import pytest
from nnue_binpack import binpack, game
from nnue_positions import fixed_records, plain_text

from experiments.nnue.data import SMALL
from experiments.nnue.loader_calls import FOLDER, SOURCES
from experiments.nnue.pack import read_pack, write_pack

NATIVE = Path(__file__).parent / "native"
COMMON = ["-std=c++20", "-g0", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{FOLDER}"]


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_batches_and_early_ends_under_sanitizers(kind: str, tmp_path: Path):
    pytest.importorskip("chess", reason="python-chess is not installed")
    compiler = os.environ.get("CXX", "c++")
    sanitize = [f"-fsanitize={kind}", "-fno-sanitize-recover=all"]
    empty = [compiler, *sanitize, "-x", "c++", "-", "-o", str(tmp_path / "empty")]
    if subprocess.run(empty, input=b"int main() {}", check=False).returncode:
        pytest.skip(f"{compiler} has no sanitizer {kind}")
    sources = [*SOURCES, NATIVE / "nnue_loader.cpp"]
    commands = [
        [compiler, *COMMON, *sanitize, "-c", str(path), "-o", str(tmp_path / f"{i}.o")]
        for i, path in enumerate(sources)
    ]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in running] == [0] * len(running)
    program, objects = tmp_path / "program", [command[-1] for command in commands]
    subprocess.run([compiler, *sanitize, "-pthread", *objects, "-o", str(program)], check=True)
    small = read_pack(SMALL)
    pack, text, packed = tmp_path / "some.bin", tmp_path / "some.plain", tmp_path / "some.binpack"
    write_pack(pack, small.records[:250], {})
    text.write_text(plain_text(fixed_records()))
    packed.write_bytes(binpack([[game(Random(5), 30)]]))
    words = [pack, read_pack(pack).offset, 250, text, len(fixed_records()), packed]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all well\n"
