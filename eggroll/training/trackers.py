"""Trackers of a run besides its folder: TensorBoard, Weights & Biases, trackio.

A tracker works in a thread of its own behind a queue. What fails there, or takes its time, stops
no update: one warning is said, and the run goes on without that tracker.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import secrets
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from eggroll.cli.screen import say
from eggroll.errors import InputError, object_in
from eggroll.files import CONFIG, Row, write_whole

NONE: Final = "none"
FILE: Final = "trackers.json"  # of a run's folder: the id under which trackers know it
PROJECT: Final = "eggroll"
MOST: Final = 10_000  # rows that may wait for a tracker
PATIENCE: Final = 20.0  # seconds that the end of a run waits for it
ANSWER: Final = 15.0  # seconds in which a service must answer at first


class Tracked(NamedTuple):
    """A run as trackers see it; step: updates made when it starts or goes on."""

    folder: Path
    id: str
    step: int
    config: dict[str, Any]


class Tracker(ABC):
    """One service. Everything but its making happens in one thread, `begin` first, `end` last."""

    package: ClassVar[str]

    @abstractmethod
    def begin(self, run: Tracked) -> None:
        """Opens the run, or goes on with it if its id is known."""

    @abstractmethod
    def log(self, step: int, values: dict[str, float]) -> None:
        """Takes the figures of an update."""

    @abstractmethod
    def text(self, step: int, name: str, text: str) -> None:
        """Takes a text, such as the samples."""

    @abstractmethod
    def end(self) -> None:
        """Sees that everything is written."""


class TensorBoard(Tracker):
    """Event files in the run's folder; those of updates made anew replace the earlier ones."""

    package = "tensorboardX"

    def begin(self, run: Tracked) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(self.package)
        purge = run.step + 1 if run.step else None
        self._writer = module.SummaryWriter(
            str(run.folder / "tensorboard"), purge_step=purge,
            filename_suffix=f".{run.step}",  # as names have whole seconds, and would be replaced
        )  # fmt: skip
        self.text(run.step, "config", f"```json\n{json.dumps(run.config, indent=1)}\n```")

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, text, step)

    def end(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """Weights & Biases; without an API key or WANDB_MODE the run is kept offline in the folder."""

    package = "wandb"

    def begin(self, run: Tracked) -> None:
        self._wandb = importlib.import_module(self.package)
        mode = os.environ.get("WANDB_MODE")
        if not mode and not self._wandb.login(prompt=False):
            mode = "offline"
        settings = self._wandb.Settings(
            console="off", silent=True, disable_git=True, init_timeout=ANSWER
        )
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.folder.name, id=run.id,
            resume="allow", dir=str(run.folder), mode=mode, config=run.config, settings=settings,
        )  # fmt: skip

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def text(self, step: int, name: str, text: str) -> None:
        table = self._wandb.Table(columns=["step", "text"], data=[[step, text]])
        self._run.log({name: table}, step=step)

    def end(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    """trackio's local database, which `trackio show` draws."""

    package = "trackio"

    def begin(self, run: Tracked) -> None:
        self._trackio = importlib.import_module(self.package)
        self._run = self._trackio.init(
            project=PROJECT, name=f"{run.folder.name}-{run.id}", resume="allow", embed=False,
            config=run.config, auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def text(self, step: int, name: str, text: str) -> None:
        self._run.log({name: self._trackio.Markdown(f"```\n{text}\n```")}, step=step)

    def end(self) -> None:
        self._run.finish()


TRACKERS: Final[dict[str, type[Tracker]]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
}


def names_in(track: str) -> list[str]:
    """The trackers that the option names, one or several with commas; none for `none`.

    Raises:
        InputError: one is unknown.
    """
    names = [] if track == NONE else list(dict.fromkeys(track.split(",")))
    for name in names:
        if name not in TRACKERS:
            raise InputError(
                f"--track is {track[:60]!r}: {NONE} or one of {', '.join(TRACKERS)} is needed, or "
                "several with commas."
            )
    return names


def check_installed(track: str) -> None:
    """Raises InputError unless the packages of these trackers are there; imports none of them."""
    for name in names_in(track):
        package = TRACKERS[name].package
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"--track {name} needs the package {package}: run `pip install {package}`, or "
                "leave --track out."
            )


class Feed:
    """A tracker in its thread. `put` never waits, and after a failure does nothing."""

    def __init__(self, name: str, run: Tracked) -> None:
        self.name, self._error, self._said = name, "", False
        self._queue: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(MOST)
        self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)
        self._thread.start()

    def put(self, call: Callable[[Tracker], None] | None) -> None:
        """Hands a call to the tracker; None ends it."""
        if not self._error:
            try:
                self._queue.put_nowait(call)
            except queue.Full:
                self._error = f"it is {MOST:,} updates behind"
        if self._error and not self._said:
            self._said = True
            say(f"warning: --track {self.name}: {self._error}; the run goes on without it.")

    def close(self, patience: float) -> None:
        """Ends the tracker, and waits for it so many seconds at most."""
        self.put(None)
        self._thread.join(patience)
        if self._thread.is_alive() and not self._error:
            self._error = f"it has not taken everything within {patience:g} s"
        self.put(None)  # which says what failed meanwhile

    def _work(self, run: Tracked) -> None:
        try:
            tracker = TRACKERS[self.name]()
            tracker.begin(run)
            while call := self._queue.get():
                call(tracker)
            tracker.end()
        except BaseException as error:  # whatever others' code raises ends the tracker alone
            said = " ".join(str(error).split())[:160]
            self._error = said or type(error).__name__


class Tracking:
    """The trackers of a run, none or several; ended by `end`, or as a context manager."""

    def __init__(self, names: Sequence[str], run: Tracked | None) -> None:
        self._feeds = [Feed(name, run) for name in names if run]
        self._step = run.step if run else 0

    def log(self, row: Row) -> None:
        """Takes a row of metrics; of a list, every number under a name of its own."""
        self._step, values = row["step"], dict(_numbers(row))
        for feed in self._feeds:
            feed.put(lambda tracker, step=self._step: tracker.log(step, values))  # type: ignore[misc]

    def samples(self, text: str) -> None:
        for feed in self._feeds:
            feed.put(lambda tracker: tracker.text(self._step, "samples", text))

    def end(self) -> None:
        """Waits for the trackers, but not long; may be called again."""
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            feed.close(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def tracking(track: str, folder: Path | None, step: int) -> Tracking:
    """Starts the trackers of a run; none of one without a folder."""
    names = names_in(track)
    if not names or folder is None:
        return Tracking([], None)
    config = object_in((folder / CONFIG).read_bytes())
    return Tracking(names, Tracked(folder.absolute(), _id_of(folder / FILE), step, config))


def _numbers(row: Row) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, list):
            yield from ((f"{name}/{i}", x) for i, x in enumerate(value))
        elif name != "step":
            yield name, value


def _id_of(path: Path) -> str:
    """The id of a run for trackers, which stays when it goes on."""
    with contextlib.suppress(OSError, ValueError):
        found: str = object_in(path.read_bytes(), {"id": str})["id"]
        if found.isalnum() and len(found) <= 64:
            return found
    made = secrets.token_hex(4)
    write_whole(path, json.dumps({"id": made}).encode() + b"\n")
    return made
