"""The tests say which readers the kernels had, and keep what they compile."""

from __future__ import annotations

import os
from pathlib import Path

import built
import pytest
from conftest import READERS, readers_line


def test_one_line_names_the_readers():
    every = set(READERS)
    assert readers_line(set(), set()) == ""
    assert readers_line(every, set()) == f"kernels of GPUs were read by: {', '.join(READERS)}"
    assert readers_line({"emulation", "OpenCL reading"}, {"NVRTC", "machine code"}) == (
        "kernels of GPUs were read by: emulation, OpenCL reading; "
        "missing: NVRTC, machine code (pip install '.[nvrtc]')"
    )
    nobody = readers_line(set(), every)
    assert nobody.startswith("kernels of GPUs were read by: nobody; missing: emulation, OpenCL")
    assert nobody.count("\n") == 0


def test_files_are_kept_that_were_used_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those made by other means as well, but no test takes them."""
    monkeypatch.setattr(built, "BUILD", tmp_path)
    monkeypatch.setattr(built, "KEPT_BYTES", 30)
    folder_of = built.folder_of.__wrapped__
    folder = folder_of("kind", b"means")
    for name, seconds in (("a", 30), ("b", 20), ("c", 10), ("d", 40)):
        with built.whole(folder / name) as made:
            assert not (folder / name).exists()
            made.write_bytes(bytes(10))
        os.utime(folder / name, (seconds, seconds))
    assert built.used(folder / "c")
    assert not built.used(folder / "e")
    assert folder_of("kind", b"means") == folder
    assert sorted(path.name for path in folder.iterdir()) == ["a", "c", "d"]
    other = folder_of("kind", b"other means")
    assert other != folder
    assert not list(other.iterdir())
    for name in "ef":
        (other / name).write_bytes(bytes(10))
    folder_of("kind", b"other means")
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert sorted(path.name for path in other.iterdir()) == ["e", "f"]


def test_what_fails_leaves_no_file(tmp_path: Path):
    def half(made: Path) -> None:
        made.write_bytes(b"half of it")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), built.whole(tmp_path / "made") as made:
        half(made)
    assert not list(tmp_path.iterdir())
