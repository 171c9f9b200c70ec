"""mlx.launch, with an exit code: `python -m eggroll.launch -n 4 -- python -m eggroll.train ...`.

mlx.launch starts the ranks, here and by ssh, from its own options and hostfiles. What carries their
output and waits for them is replaced: mlx.launch itself returns 0 whatever they return, keeps a
core busy by asking its pipes without pause, and waits for ever for a rank that is stopped.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.launch"))

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, BinaryIO, NoReturn

import tyro

from eggroll.cli import command as cli
from eggroll.cli.screen import say
from eggroll.errors import InputError

ABOUT = (
    "Starts one run as several processes, by mlx.launch and with its options, and returns the exit "
    "code of the ranks: 0 if all are done, else that of the first that failed. The command stands "
    "after --. mlx.launch --help lists all options, docs/scaling-out.md says more."
)
EXAMPLES = (
    ("-n 4 -- python -m eggroll.train --out runs/four", "four ranks on this machine"),
    ("--hostfile hosts.json -- python -m eggroll.train", "the ranks of a file, on their machines"),
)
# Seconds that the others have to end by themselves after a rank died by a signal, or after one gave
# up by itself, which all may be about to do; then to end by SIGTERM, until they are killed.
AFTER_DEATH, AFTER_FAILURE, TO_END = 3.0, 20.0, 17.0
POLL = 0.05


@dataclass(frozen=True)
class LaunchOptions:
    """Options of mlx.launch that most need; it reads them itself."""

    repeat_hosts: int = 1
    """Ranks on this machine, or on each host; -n for short."""
    hostfile: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Hosts, by the names that ssh knows, and their addresses."""
    starting_port: int = 32323
    """First port of the ring, which takes one for every rank."""


def words_for_mlx(words: Sequence[str]) -> list[str]:
    """The words as they are, which mlx.launch reads itself; but for those that ask for help.

    Raises:
        InputError: there is no command, or a number of ranks or a port is out of range.
    """
    own = list(words[: words.index("--")] if "--" in words else words)
    if not words or cli.asks_for_help(own) or "--version" in own:
        cli.parse(
            LaunchOptions, own or ["--help"], command="launch", about=ABOUT, examples=EXAMPLES
        )
    if words[-1:] == ["--"]:
        raise InputError("no command stands after --: give that of the ranks.")
    for name, most in (("-n", 1 << 16), ("--repeat-hosts", 1 << 16), ("--starting-port", 65535)):
        given = cli.word_of(own, name)
        if given and not (given.isascii() and given.isdigit() and 1 <= int(given) <= most):
            raise InputError(f"{name} is {given}: a whole number from 1 to {most} is needed.")
    return list(words)


class _Parser(argparse.ArgumentParser):
    """In place of mlx.launch's: says one sentence, and takes no unknown option for the command."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"mlx.launch: {message} (mlx.launch --help lists its options).")

    def parse_known_args(self, *given: Any) -> Any:  # type: ignore[override]
        found, rest = super().parse_known_args(*given)
        if rest and rest[0].startswith("-") and rest[0] != "--":
            self.error(f"{rest[0]!r} is no option")
        return found, rest


def run_mlx_launch(words: Sequence[str]) -> int:
    """Runs mlx.launch on these words; returns the exit code of the ranks.

    Raises:
        InputError: this MLX has another mlx.launch than the one that this goes with.
    """
    codes: list[int] = []
    launch = _mlx_launch()
    original, argv = launch._launch_with_io, sys.argv
    launch._launch_with_io = partial(_run_ranks, codes)
    launch.argparse = SimpleNamespace(**vars(argparse) | {"ArgumentParser": _Parser})
    sys.argv = ["mlx.launch", *words]
    try:
        launch.main()
    except SystemExit as stop:  # a complaint of its own
        return stop.code if isinstance(stop.code, int) else cli.REFUSED
    finally:
        launch._launch_with_io, launch.argparse, sys.argv = original, argparse, argv
    return next((code for code in codes if code), cli.DONE)


def _mlx_launch() -> Any:
    from mlx._distributed_utils import launch

    if not callable(getattr(launch, "_launch_with_io", None)):
        raise InputError(
            "this version of MLX starts ranks in a way that eggroll.launch does not know: use "
            "mlx.launch, whose exit code is 0 even if ranks fail."
        )
    return launch


def _run_ranks(codes: list[int], kind: Any, arguments: Sequence[Any], verbose: bool) -> None:
    """Starts the ranks and waits for them; their exit codes, the first to fail first."""
    if not arguments:
        raise InputError("--hostfile names no host: give one with those of the ranks.")
    with _own_sessions():
        ranks = [kind(*positional, **named) for positional, named in arguments]
    pipes = [
        threading.Thread(target=_copy, args=(rank, pipe, out, out is sys.stdout.buffer))
        for rank in ranks
        for pipe, out in (
            (rank.process.stdout, sys.stdout.buffer),
            (rank.process.stderr, sys.stderr.buffer),
        )
    ]
    for pipe in pipes:
        pipe.start()
    signals: list[int] = []
    with cli.handling(lambda n, frame: signals.append(n), signal.SIGINT, signal.SIGTERM):
        codes += _wait_for([rank.process for rank in ranks], signals)
    for pipe in pipes:
        pipe.join()
    for number, rank in enumerate(ranks):
        if getattr(rank, "_pidfile", "") is None and not rank._is_local:  # ssh itself says nothing
            say(
                f"launch: rank {number} never began: ssh must reach {rank._host!r} and log in "
                "without asking for anything."
            )


@contextlib.contextmanager
def _own_sessions() -> Iterator[None]:
    """Processes started within get no Ctrl-C of the terminal, as they are told of it here, once."""
    launch = _mlx_launch()
    original = launch.Popen
    launch.Popen = partial(subprocess.Popen, start_new_session=True)
    try:
        yield
    finally:
        launch.Popen = original


def _copy(rank: Any, pipe: BinaryIO, out: BinaryIO, is_stdout: bool) -> None:
    """Passes on what a rank says, but for the line that mlx.launch reads for itself."""
    while data := os.read(pipe.fileno(), 1 << 16):
        text = rank.preprocess_output(data.decode(errors="replace"), is_stdout)
        with contextlib.suppress(OSError):
            out.write(text.encode())
            out.flush()


def _wait_for(ranks: Sequence[subprocess.Popen[bytes]], signals: list[int]) -> list[int]:
    """Exit codes in the order in which the ranks ended; a signal has 128 added, as in a shell.

    signals: those that came, which are passed on.
    """
    codes: list[int] = []
    running, end_by, asked_to_end = list(ranks), float("inf"), False
    while running:
        for number in signals[:]:
            signals.remove(number)
            for rank in running:
                rank.send_signal(number)
        for rank in [rank for rank in running if rank.poll() is not None]:
            running.remove(rank)
            code = rank.returncode
            if code < 0:
                say(f"launch: rank {ranks.index(rank)} was ended by signal {-code}.")
            codes.append(128 - code if code < 0 else code)
            if code:
                patience = AFTER_DEATH if code < 0 else AFTER_FAILURE
                end_by = min(end_by, time.monotonic() + patience)
        overdue = time.monotonic() - end_by
        if overdue > 0 and not asked_to_end:
            asked_to_end = True
            signals.append(signal.SIGTERM)  # to those that wait for the others to appear
        if overdue > TO_END:
            for rank in running:
                rank.kill()
        time.sleep(POLL)
    return codes


main = cli.Command(LaunchOptions, run_mlx_launch, words_for_mlx)
