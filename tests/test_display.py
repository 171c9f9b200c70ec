"""Live progress: a bar below the validations on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from eggroll.cli import command as cli
from eggroll.cli import screen
from eggroll.cli.screen import Display, in_bits
from eggroll.errors import InputError

ROWS = [
    {"step": i, "loss": 5 - i, "update_rate": 0.25, "tokens_per_second": 1234567.0, "seconds": 0.5}
    | ({"val_loss": 4.9 - i} if i % 2 == 0 else {})
    for i in range(1, 5)
]


def shown(rows: list[dict[str, float]], **options: str) -> None:
    with Display(0, 4, "bits per byte", **options) as display:
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


def test_the_time_left_is_by_the_mean_of_all_updates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(screen, "PLAIN_SECONDS", 0.0)
    with Display(0, 1003, "bits per byte") as display:
        for step, seconds in ((1, 1.0), (2, 1.0), (3, 31.0)):  # one that had to wait
            display.update(ROWS[1] | {"step": step, "seconds": seconds})
    found = re.findall(r"ETA (.*)", capsys.readouterr().err)
    assert found == ["16:42", "16:41", "3:03:20"]


def test_small_losses_are_told_apart():
    losses = (3.71849, 0.1, 0.09999, 0.00144, 0.0)
    assert [in_bits(loss) for loss in losses] == [
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
    with Display(4, 4, "bits per byte", legend="loss: this"):
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


@contextlib.contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """stderr is a terminal that nobody reads, and it is full. No fixture: pytest would undo it."""
    main, side = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    os.set_blocking(side, False)
    for size in (1000, 1, 1, 1, 1):  # the system moves what it took, and has room again
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(side, b"x" * size)
        time.sleep(0.02)
    os.set_blocking(side, True)
    with open(side, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        yield
        monkeypatch.undo()
        os.set_blocking(main, False)  # whoever still waits may go
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                while os.read(main, 1 << 16):
                    pass
    os.close(main)


def ends(work: Callable[[], object]) -> bool:
    """True if this comes to an end, within much more time than it takes."""
    waiting = threading.Thread(target=work, daemon=True)
    waiting.start()
    waiting.join(10)
    return not waiting.is_alive()


def test_a_terminal_that_nobody_reads_holds_up_nothing(monkeypatch: pytest.MonkeyPatch):
    with unread(monkeypatch):
        ended = ends(lambda: shown(ROWS * 50))
    assert ended


def test_nor_does_it_keep_a_command_from_stopping(monkeypatch: pytest.MonkeyPatch):
    def refused() -> int:
        raise InputError("this is read by nobody")

    stop, codes = cli.Stop("nothing is left"), list[int]()
    with unread(monkeypatch):
        ended = [ends(lambda: stop._signal(signal.SIGTERM, None))]
        ended.append(ends(lambda: codes.append(cli.run(refused))))
    assert ended == [True, True]
    assert stop.asked
    assert codes == [cli.REFUSED]


def test_a_screen_writes_all_that_is_read(monkeypatch: pytest.MonkeyPatch):
    main, side = pty.openpty()
    parts: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(main, parts))
    reader.start()
    with open(side, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        written = screen.Screen()
        for i in range(500):
            written.write(f"{i} ")
        written.close()
    reader.join()
    os.close(main)
    assert b"".join(parts).decode() == "".join(f"{i} " for i in range(500))


class Pages(list[str]):
    """A notebook's display: all that it was told to show, and that with an id."""

    HTML = str

    def display(self, page: str, *, display_id: bool) -> Pages:
        assert display_id
        self.append(page)
        return self

    def update(self, page: str) -> None:
        self.append(page)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_notebook_shows_a_bar_and_curves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kernel: bool
):
    shell, pages = ModuleType("IPython"), Pages()
    running = SimpleNamespace(kernel=1) if kernel else SimpleNamespace()
    shell.get_ipython = lambda: running  # type: ignore[attr-defined]
    shell.display = pages  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", pages)
    shown(ROWS, legend="loss: this")
    out, err = capsys.readouterr()
    if not kernel:  # as in IPython on a terminal
        assert not pages
        assert "update 4/4" in err
        return
    assert (out, err) == ("", "")
    assert 2 <= len(pages) <= 4
    assert 'value="0" max="4"' in pages[0]
    last = pages[-1]
    assert 'value="4" max="4"' in last
    assert "loss 1.000 · validation 0.900 bits per byte" in last
    assert "loss: this" in last
    loss, valid = re.findall('points="([^"]*)"', last)
    assert loss.split()[0] == "90.0,4.5"
    assert len(loss.split()) == 4
    assert len(valid.split()) == 2
