"""The stages of a run: selfplay, train, eval. Each is resumed after a kill at any point.

A run is a folder. Iteration k plays `games/k.npz` with `nets/k`, trains `nets/k+1`, and judges it
in `evals/k+1.json`. A stage is done once its last file is there, and every file is written whole or
not at all; what a stage computes is a function of the settings and the iteration, so that a stage
that is begun again, by any number of workers, gives the same bytes; of networks the same tensors,
as the order of names in their header varies. Times go to times.jsonl alone.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eggroll.errors import InputError
from eggroll.files import locked, write_whole
from eggroll.spec import rng
from experiments.selfplay import evaluation, learners, play, settings, shards, views
from experiments.selfplay.labels import value_units
from experiments.selfplay.learners import Learner, Positions
from experiments.selfplay.shards import Archive, Games, Shards

CHUNKS, BATCHES = range(2)  # purposes of chance
CHECKPOINT = 200  # updates from one checkpoint within a training to the next
Say = Callable[[str], None]


class Run:
    """A run's folder, and what is in it."""

    def __init__(self, folder: Path, named: dict[str, Any] | None = None) -> None:
        """A run that has begun, or, with settings named, perhaps a new one.

        Raises:
            InputError: there is none, or it has other settings.
        """
        self.folder = folder
        self.settings = settings.read(folder) if named is None else settings.settle(folder, named)
        for name in ("games", "nets", "evals", "shards"):
            (folder / name).mkdir(exist_ok=True)
        self.suffix = ".npz" if self.settings.learner == "adam" else ".safetensors"

    def net(self, k: int) -> Path:
        return self.folder / "nets" / f"{k:04}{self.suffix}"

    def unfinished_net(self, k: int) -> Path:
        return self.folder / "nets" / f"{k:04}-unfinished{self.suffix}"

    def games(self, k: int) -> Path:
        return self.folder / "games" / f"{k:04}.npz"

    def shards(self, k: int) -> Shards:
        return Shards(self.folder / "shards" / f"{k:04}")

    def facts(self, kind: str, k: int) -> Path:
        """The file of figures of a stage: kind games, nets or evals."""
        return self.folder / kind / f"{k:04}.json"

    @property
    def trained(self) -> int:
        """Iterations that have been trained."""
        done = [int(path.stem) for path in (self.folder / "nets").glob("[0-9]*.json")]
        return max(done, default=0)

    @property
    def played(self) -> int:
        """Iterations whose games are there."""
        done = [int(path.stem) for path in (self.folder / "games").glob("[0-9]*.json")]
        return max(done, default=-1) + 1

    def learner(self, k: int, threads: int = 1) -> Learner:
        """The network of iteration k with all that its training goes on from."""
        if k == 0 and not self.facts("nets", 0).exists():
            if self.net(0).exists():
                first = learners.load(self.net(0), self.settings, threads)
            else:
                first = learners.new(self.settings, threads)
                first.save(self.net(0))
            write_json(self.facts("nets", 0), {"step": 0, "signature": first.signature})
        return learners.load(self.net(k), self.settings, threads)

    def signature(self, k: int) -> str:
        """The signature of the network of iteration k."""
        found: str = settings.read_json(self.facts("nets", k))["signature"]
        return found

    def note(self, stage: str, k: int, began: float, **figures: Any) -> None:
        """Adds the seconds of a stage to times.jsonl, which no result depends on."""
        row = {"stage": stage, "iteration": k, "seconds": time.perf_counter() - began, **figures}
        with (self.folder / "times.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def write_json(path: Path, what: dict[str, Any]) -> None:
    write_whole(path, json.dumps(what, indent=1).encode() + b"\n")


# Self-play


def chunk_sizes(games: int, chunk: int) -> list[int]:
    """Games of each chunk of an iteration."""
    return [min(chunk, games - first) for first in range(0, games, chunk)]


def about_games(run: Run, k: int) -> dict[str, Any]:
    """What games of an iteration must have been played with."""
    s = run.settings
    return {"game": s.game, "iteration": k, "net": run.signature(k)}


def selfplay(run: Run, *, workers: int = 1, say: Say = print) -> None:
    """Plays the games of the next iteration by worker processes, and merges their chunks."""
    k, s, began = run.trained, run.settings, time.perf_counter()
    at = run.shards(k)
    if run.facts("games", k).exists():
        at.remove()  # a kill came between the merge and this
        say(f"selfplay {k}: its games are there; 'train' is next")
        return
    if k >= s.iterations:
        raise InputError(
            f"the run has all its {s.iterations} iterations: name a new folder for a longer one."
        )
    run.learner(k)
    missing, memory = list[int](), 0
    if not run.games(k).exists():
        at.make(workers)
        missing = sorted({*range(len(chunk_sizes(s.games, s.chunk)))} - at.found().keys())
        memory = _work(run, k, workers, missing)
        shards.merge(_checked(run, k, at), run.games(k), about_games(run, k))
    whole = Archive(run.games(k))
    shards.expect(whole, about_games(run, k))
    figures = shards.summary(*(whole.field(name) for name in ("value", "target", "game")))
    write_json(run.facts("games", k), figures | {"sha256": shards.digest(run.games(k))})
    at.remove()
    run.note(
        "selfplay", k, began, workers=workers, chunks=len(missing), games=figures["games"],
        positions=figures["positions"], memory=memory,
    )  # fmt: skip
    say(
        f"selfplay {k}: {figures['games']} games, {figures['positions']} positions, decisive "
        f"{figures['decisive_game_ratio']:.1%}, nonzero "
        f"{figures['value_target_summary']['nonzero_ratio']:.1%}"
    )


def _checked(run: Run, k: int, at: Shards) -> list[Archive]:
    """All chunks of an iteration in their order."""
    parts = []
    for chunk, path in sorted(at.found().items()):
        parts.append(Archive(path))
        shards.expect(parts[-1], about_games(run, k) | {"chunk": chunk})
    return parts


def _work(run: Run, k: int, workers: int, missing: list[int]) -> int:
    """Has worker processes play the missing chunks; the largest memory of one, in bytes.

    Raises:
        InputError: a worker ended with an error.
    """
    if workers == 1:
        work(run, k, 0, missing)
        return peak_memory()
    command = [sys.executable, "-m", "experiments.selfplay", "work", str(run.folder)]
    shares = {w: missing[w::workers] for w in range(workers)}
    started = [
        subprocess.Popen(
            [*command, "--iteration", str(k), "--worker", str(w), "--parent", str(os.getpid()),
             "--chunks", *map(str, share)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,  # Ctrl-C is ours
        )
        for w, share in shares.items() if share
    ]  # fmt: skip
    try:
        said = [process.communicate()[0] for process in started]
    except BaseException:
        for process in started:
            process.terminate()
        raise
    if codes := [process.returncode for process in started if process.returncode]:
        raise InputError(
            f"a worker of self-play ended with code {codes[0]}: its words are above; run the "
            "command again, which plays the missing chunks alone."
        )
    return max((int(words.split()[-1]) for words in said), default=0)


def work(run: Run, k: int, worker: int, chunks: list[int], parent: int = 0) -> None:
    """Plays chunks one after another, each into a file of its own.

    parent: the process that asked for them; without it nobody merges, so the worker ends too.
    """
    s = run.settings
    evaluate, sizes = run.learner(k).evaluator(), chunk_sizes(s.games, s.chunk)
    at = run.shards(k)
    for chunk in chunks:
        if parent and os.getppid() != parent:
            return
        key = rng.key(s.seed, rng.CALLER, k, CHUNKS)
        seed = int(rng.counters(key, chunk, 1)[0] >> np.uint64(1))
        played = play.chunk(s, evaluate, sizes[chunk], seed)
        about = about_games(run, k) | {"chunk": chunk}
        shards.write(at.shard(worker) / at.name(chunk), played, about)


def peak_memory() -> int:
    """Most memory that this process has had, bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


# Training


class Window:
    """The positions of the last iterations, and the batches that are drawn of them."""

    def __init__(self, run: Run, k: int) -> None:
        self.settings = run.settings
        first = max(0, k + 1 - run.settings.window)
        files = [Archive(run.games(i)) for i in range(first, k + 1)]
        for archive, i in zip(files, range(first, k + 1), strict=True):
            shards.expect(archive, about_games(run, i))
        kept = {n: np.concatenate([a.field(n) for a in files]) for n in Games._fields}
        self.games = Games(**kept)
        self.units = value_units(self.games.target)
        self.views = views.of(run.settings.game, bool(run.settings.symmetries))

    def batch(self, step: int) -> Positions:
        """The positions of update `step`, drawn with replacement, each in one of its views."""
        s = self.settings
        key = rng.key(s.seed, rng.CALLER, step, BATCHES)
        words = rng.counters(key, 0, 2 * s.batch)
        at = (words[: s.batch] >> np.uint64(16)) % np.uint64(len(self.units))
        which = ((words[s.batch :] >> np.uint64(16)) % np.uint64(len(self.views.cells))).astype(int)
        return self.shown(at.astype(np.int64), which)

    def shown(self, at: Any, which: Any) -> Positions:
        """Positions `at` [B] of the window in views `which` [B]."""
        games, actions = self.games, self.games.visits.shape[1]
        cells, moves = self.views.cells[which], self.views.actions[which]
        planes = games.state[at].reshape(len(at), -1, cells.shape[1])
        state = np.take_along_axis(planes, cells[:, None], axis=2).reshape(len(at), -1)
        legal = shards.unpacked(games.legal[at], actions)
        return Positions(
            state, np.take_along_axis(games.visits[at], moves, axis=1), self.units[at],
            np.take_along_axis(legal, moves, axis=1),
        )  # fmt: skip


def train(run: Run, *, threads: int = 1, source: Run | None = None, say: Say = print) -> None:
    """Trains the next network on the window of games.

    source: the run whose games they are, if another.
    """
    k, s, began, played = run.trained, run.settings, time.perf_counter(), source or run
    if played.played <= k:
        raise InputError(f"iteration {k} has no games yet: 'selfplay' comes before 'train'.")
    run.shards(k).remove()  # left over if a kill came right after the merge
    unfinished, end = run.unfinished_net(k + 1), (k + 1) * s.updates
    begun = next((p for p in (run.net(k + 1), unfinished) if p.exists()), run.net(k))
    if begun == run.net(0):
        run.learner(0)
    learner, window = learners.load(begun, s, threads), Window(played, k)
    while learner.step < end:
        learner.learn(window.batch(learner.step))
        if learner.step % CHECKPOINT == 0 and learner.step < end:
            learner.save(unfinished)
    if begun != run.net(k + 1):
        learner.save(run.net(k + 1))
    newest = np.arange(max(0, len(window.units) - 4096), len(window.units))
    lost = learners.loss(learner.evaluator(), window.shown(newest, np.zeros(len(newest), int)))
    figures = {
        "step": learner.step, "signature": learner.signature, "positions": len(window.units),
        **lost._asdict(),
    }  # fmt: skip
    write_json(run.facts("nets", k + 1), figures)
    unfinished.unlink(missing_ok=True)
    run.note("train", k, began)
    say(
        f"train {k}: update {learner.step}, policy {lost.policy:.3f} bits (visits "
        f"{lost.entropy:.3f}), value {lost.value:.3f} bits"
    )


# Evaluation


def evaluate(run: Run, *, threads: int = 1, say: Say = print) -> None:
    """Judges the newest network, if it has not been judged."""
    k, began = run.trained, time.perf_counter()
    if run.facts("evals", k).exists():
        say(f"eval {k}: it is there")
        return
    figures = evaluation.judge(run, k, threads)
    write_json(run.facts("evals", k), figures)
    run.note("eval", k, began)
    say(f"eval {k}: {evaluation.sentence(figures)}")


def compare(
    source: Run, folder: Path, named: dict[str, Any], *, threads: int = 1, say: Say = print
) -> None:
    """Trains another learner on the games of a run, in the same batches, into a folder of its own.

    named: settings that differ, learner and rate alone.

    Raises:
        InputError: another setting is named.
    """
    if others := named.keys() - {"learner", "rate"}:
        raise InputError(
            f"--{min(others)} cannot differ from the run's, or batches would: name --learner and "
            "--rate alone."
        )
    run = Run(folder, {**vars(source.settings), "rate": 0.0, **named})
    with alone(run):
        while run.trained < source.trained:
            train(run, threads=threads, source=source, say=say)
            if run.trained % run.settings.eval_every == 0 or run.trained == source.trained:
                evaluate(run, threads=threads, say=say)


def everything(run: Run, *, workers: int = 1, threads: int = 1, say: Say = print) -> None:
    """All stages of all iterations that are left."""
    s = run.settings
    while True:
        k = run.trained
        due = k % s.eval_every == 0 or k == s.iterations
        if due and not run.facts("evals", k).exists():
            evaluate(run, threads=threads, say=say)
        if k == s.iterations:
            return
        if run.played <= k:
            selfplay(run, workers=workers, say=say)
        train(run, threads=threads, say=say)


def alone(run: Run) -> Any:
    """Holds the run's lock: two commands in one folder wait for each other."""
    return locked(run.folder / ".lock")
