"""Live progress: a bar below the validations on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import threading
from pathlib import Path

import pytest

from eggroll import runlog

ROWS = [
    {"step": i, "loss": 5 - i, "update_rate": 0.25, "tokens_per_second": 1234567.0, "seconds": 0.5}
    | ({"val_loss": 4.9 - i} if i % 2 == 0 else {})
    for i in range(1, 5)
]


def shown(rows: list[dict[str, float]], **options: str) -> None:
    with runlog.Display(0, 4, "bits per byte", **options) as display:
        for row in rows:
            display.update(row)


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]):
    shown(ROWS, legend="loss: this; validation: that")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "loss: this; validation: that",
        "update 1/4 · loss 4.000 · 25.0% moved · 1.23M tokens/s · ETA 0:01",
        "update 2/4 · loss 3.000 · validation 2.900 bits per byte · 25.0% moved · 1.23M tokens/s "
        "· ETA 0:01",
        "update 4/4 · loss 1.000 · validation 0.900 bits per byte · 25.0% moved · 1.23M tokens/s",
    ]


def test_small_losses_are_told_apart():
    losses = (3.71849, 0.1, 0.09999, 0.00144, 0.0)
    assert [runlog.in_bits(loss) for loss in losses] == [
        "3.718", "0.100", "0.09999", "0.00144", "0.00000",
    ]  # fmt: skip


def read_all(handle: int, parts: list[bytes]) -> None:
    """All that is written to a terminal until it is closed, which Linux tells by an error."""
    with contextlib.suppress(OSError):
        while part := os.read(handle, 1 << 16):
            parts.append(part)


@pytest.mark.parametrize("width", [80, 120])
def test_validations_stay_above_the_bar(monkeypatch: pytest.MonkeyPatch, width: int):
    main, side = pty.openpty()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    parts: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(main, parts))
    reader.start()
    with open(side, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        shown(ROWS)
    reader.join()
    os.close(main)
    screen = b"".join(parts).decode()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in screen.split("\n")]
    for line in (
        "update 2 · loss 3.000 · validation 2.900 bits per byte",
        "update 4 · loss 1.000 · validation 0.900 bits per byte",
    ):
        assert lines.count(line) == 1
    assert any(line.startswith("update 4/4 ━") for line in lines)
    assert max(map(len, lines)) <= width


def test_a_finished_run_has_no_legend(capsys: pytest.CaptureFixture[str]):
    with runlog.Display(4, 4, "bits per byte", legend="loss: this"):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux's own device")
def test_a_screen_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        shown(ROWS, legend="loss: this")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        os.dup2(os.open(tmp_path / "sink", os.O_WRONLY | os.O_CREAT), full.fileno())
