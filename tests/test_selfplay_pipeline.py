"""The pipeline of self-play: stages, workers, merge, kills, and what commands say of bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
import zipfile
from pathlib import Path

import numpy as np
import pytest

from eggroll import files
from experiments.selfplay import pipeline, shards
from experiments.selfplay.__main__ import main
from experiments.selfplay.pipeline import Run
from experiments.selfplay.shards import Archive

ROOT = Path(__file__).parents[1]
SMALL = {
    "iterations": 2, "games": 12, "chunk": 6, "simulations": 8, "updates": 5, "batch": 64,
    "hidden": "16", "eval_games": 4, "eval_every": 1, "window": 2,
}  # fmt: skip
OPTIONS = [w for name, value in SMALL.items() for w in (f"--{name.replace('_', '-')}", str(value))]


def quiet(text: str) -> None:
    pass


def results(folder: Path) -> dict[str, bytes]:
    """All that a run has computed: its games to the byte, its figures with the signatures."""
    kept = [*folder.glob("games/*"), *folder.glob("nets/*.json"), *folder.glob("evals/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    pipeline.everything(Run(folder, dict(SMALL)), say=quiet)
    return folder


def test_a_run_leaves_its_results_and_no_shards(whole: Path):
    found = results(whole)
    assert {"games/0001.npz", "nets/0002.json", "evals/0002.json"} <= found.keys()
    assert not list((whole / "shards").iterdir())
    about = json.loads(found["games/0000.json"])
    assert about["games"] == 12
    assert about["sha256"] == shards.digest(whole / "games/0000.npz")
    assert about["decisive_games"] + about["draw_games"] == 12
    games = Archive(whole / "games/0000.npz").games()
    assert games.game.max() == 11
    assert (np.diff(games.game) >= 0).all()
    assert (games.visits.sum(axis=1) == 8).all()
    assert not (games.visits * ~games.legal_mask()).any()
    assert json.loads(found["nets/0002.json"])["step"] == 10


def killed_at_a_write(folder: Path, named: dict, after: bool) -> bool:
    """Runs a child that ends by SIGKILL at its first write; whether it came to one."""
    child = os.fork()
    if child == 0:
        replace = os.replace

        def once(source: object, target: object) -> None:
            if after:
                replace(source, target)
            os.kill(os.getpid(), signal.SIGKILL)

        files.os.replace = once  # of this child alone
        try:
            pipeline.everything(Run(folder, dict(named)), say=quiet)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(("learner", "moments"), [("feedback", (False, True)), ("adam", (True,))])
def test_kills_at_every_write_lose_nothing(tmp_path, whole, monkeypatch, learner, moments):
    """Every write of every stage is cut off before it counts, and right after.

    A child gets no further than one write, so that the loop ends only if none is made twice.
    """
    monkeypatch.setattr(pipeline, "CHECKPOINT", 3)
    named, straight = SMALL | {"learner": learner, "iterations": 1}, tmp_path / "straight"
    pipeline.everything(Run(straight, dict(named)), say=quiet)
    folder, kills = tmp_path / "killed", 0
    while all(killed_at_a_write(folder, named, after) for after in moments):
        kills += 1
        assert kills <= 12, sorted(folder.glob("*/*"))
    # Settings, first network and its figures, evaluation, 2 chunks, merge, figures, a checkpoint
    # within the training, network, figures, evaluation.
    assert kills == 12
    assert results(folder) == results(straight)
    assert not list((folder / "shards").iterdir())


def test_workers_change_nothing_and_stop_with_their_parent(tmp_path, whole: Path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "experiments.selfplay"]
    play = [*command, "selfplay", str(folder), *OPTIONS, "--workers", "2"]
    begun = subprocess.Popen(play, cwd=ROOT)
    while begun.poll() is None and not list(folder.glob("shards/0000/*/chunk-*")):
        time.sleep(0.01)
    begun.kill()
    begun.wait()
    subprocess.run([*command, "selfplay", str(folder), "--workers", "3"], cwd=ROOT, check=True)
    assert results(folder)["games/0000.npz"] == results(whole)["games/0000.npz"]
    assert main(["train", str(folder)]) == 0
    assert main(["eval", str(folder)]) == 0
    for name in ("nets/0001.json", "evals/0001.json"):
        assert results(folder)[name] == results(whole)[name], name
    assert main(["infer", str(folder), "--moves", "4,0"]) == 0


def test_a_command_keeps_subtrees(tmp_path):
    """A search that goes on with a subtree has more visits than simulations; a first move has no
    subtree before it."""
    play = ["selfplay", str(tmp_path / "run"), *OPTIONS, "--depth", "9", "--reuse", "1"]
    assert main(play) == 0
    games = Archive(tmp_path / "run/games/0000.npz").games()
    visits, first = games.visits.sum(axis=1), np.unique(games.game, return_index=True)[1]
    assert (visits[first] == 8).all()
    assert visits.min() == 8 < visits.max()


KILLED = """
import os, signal, sys
from experiments.selfplay import __main__, shards

write = shards.write

def cut(*given):
    if {after}:
        write(*given)
    os.kill(os.getpid(), signal.SIGKILL)

shards.write = cut
__main__.main(sys.argv[1:])
"""


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_is_killed_loses_nothing(tmp_path, whole: Path, monkeypatch, after):
    """One of two ends before or right after its first chunk; the others' chunks stay, the stage is
    not over and says so, and the same command again gives the same games."""
    run, popen, started = Run(tmp_path / "run", dict(SMALL)), subprocess.Popen, []

    def one_is_cut(command, **options):
        if not started:
            command = [command[0], "-c", KILLED.format(after=after), *command[3:]]
        started.append(popen(command, **options))
        return started[-1]

    monkeypatch.setattr(pipeline.subprocess, "Popen", one_is_cut)
    monkeypatch.chdir(ROOT)
    with pytest.raises(pipeline.InputError, match=r"ended with code -9: .* run the command again"):
        pipeline.selfplay(run, workers=2, say=quiet)
    assert [worker.returncode for worker in started] == [-signal.SIGKILL, 0]
    assert sorted(run.shards(0).found()) == ([0, 1] if after else [1])
    assert not run.games(0).exists()
    assert not run.facts("games", 0).exists()
    pipeline.selfplay(run, workers=2, say=quiet)
    assert len(started) == (2 if after else 3)  # chunks that are there are not played again
    assert results(run.folder)["games/0000.npz"] == results(whole)["games/0000.npz"]
    assert results(run.folder)["games/0000.json"] == results(whole)["games/0000.json"]


def test_a_merge_is_there_whole_or_not_at_all(tmp_path, whole: Path, monkeypatch):
    part = Archive(whole / "games/0000.npz")
    joined = tmp_path / "joined.npz"
    shards.merge([part, part], joined, {"iteration": 0})
    games, once = Archive(joined).games(), part.games()
    np.testing.assert_array_equal(games.state, np.concatenate([once.state] * 2))
    assert games.game.max() == 2 * once.game.max() + 1
    monkeypatch.setattr(shards, "join", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    before = joined.read_bytes()
    with pytest.raises(pipeline.InputError, match="cannot be written"):
        shards.merge([part], joined, {})
    assert joined.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_merge_reads_a_chunk_at_a_time(tmp_path, monkeypatch):
    """Memory is bounded by a chunk: no more than one field of one chunk is held."""
    rng, paths = np.random.default_rng(0), []
    for i in range(6):
        n = 200
        games = shards.Games(
            rng.integers(0, 2, (n, 27)).astype(np.int8), np.zeros((n, 9), np.uint16),
            np.zeros(n, np.int8), np.zeros(n, np.float32), np.zeros(n, np.float32),
            np.ones(n, np.int8), np.zeros((n, 2), np.uint8), np.arange(n, dtype=np.int32),
        )  # fmt: skip
        paths.append(tmp_path / f"{i}.npz")
        shards.write(paths[-1], games, {})
    alive, field = [], Archive.field

    def counted(archive: Archive, name: str):
        array = field(archive, name)
        alive[:] = [ref for ref in alive if ref() is not None]
        alive.append(weakref.ref(array))
        assert len(alive) <= 2  # the one that is read, and the one that is let go of
        return array

    monkeypatch.setattr(Archive, "field", counted)
    shards.merge([Archive(path) for path in paths], tmp_path / "all.npz", {})
    monkeypatch.undo()
    assert len(Archive(tmp_path / "all.npz").games().state) == 1200


def test_damaged_and_foreign_chunks_are_refused(tmp_path, whole: Path):
    run = Run(tmp_path / "run", dict(SMALL))
    run.learner(0)
    at = shards.Shards(run.folder / "shards/0000")
    at.make(1)
    path = at.shard(0) / at.name(1)
    path.write_bytes(b"no archive")
    with pytest.raises(pipeline.InputError, match="cannot be read as games"):
        pipeline.selfplay(run, say=quiet)
    games = Archive(whole / "games/0000.npz").games()
    shards.write(path, games, {"game": "tictactoe", "iteration": 7, "net": "", "chunk": 1})
    with pytest.raises(pipeline.InputError, match="iteration 7, and 0 is needed"):
        pipeline.selfplay(run, say=quiet)
    path.unlink()
    pipeline.selfplay(run, say=quiet)
    whole_file = run.games(0)
    data = bytearray(whole_file.read_bytes())
    with zipfile.ZipFile(whole_file) as archive:
        begin = archive.getinfo("visits.npy").header_offset
    data[begin + 80] ^= 255
    whole_file.write_bytes(data)
    with pytest.raises(pipeline.InputError, match="cannot be read as games"):
        pipeline.train(run, say=quiet)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "{none}"], "is no file of settings"),
        (["run", "{new}", "--games", "0"], "--games is 0: 1 to"),
        (["run", "{new}", "--hidden", "a"], "--hidden is 'a': give 1 to 4096 units"),
        (["run", "{new}", "--learner", "token-credit", "--batch", "100"], "a multiple of 64"),
        (["run", "{new}", "--reuse", "1"], "depth is 1, root-PUCT, which has no"),
        (["run", "{new}", "--reuse", "1", "--depth", "8"], "depth is 8: give 9."),
        (["run", "{whole}", "--games", "13"], "--games is 13, but"),
        (["selfplay", "{whole}"], "the run has all its 2 iterations"),
        (["infer", "{whole}", "--moves", "0,0"], "--moves has 0 in place 2: 1, 2,"),
        (["infer", "{whole}", "--moves", "0,3,1,4,2"], "ends the game"),
        (["infer", "{whole}", "--iteration", "9"], "the run has networks 0 to 2"),
        (["infer", "{whole}", "--iteration", "-7"], "--iteration is -7: 0 or more is needed"),
        (["infer", "{whole}", "--simulations", "-2"], "--simulations is -2: 0 or more is needed"),
        (["report", "{none}", "--out", "{new}"], "is no file of settings"),
    ],
)
def test_bad_input_gets_a_sentence(tmp_path, whole, capsys, words, said):
    places = {"none": tmp_path / "none", "new": tmp_path / "new", "whole": whole}
    assert main([word.format(**places) for word in words]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


def test_a_report_of_a_run(tmp_path, whole, capsys):
    words = ["report", str(whole), "--out", str(tmp_path), "--csv", str(tmp_path / "evals.csv")]
    assert main(words) == 0
    assert capsys.readouterr().out.count("| errors carried back, int8 16 | 0 | 24 |") == 1
    assert (tmp_path / "tictactoe.png").stat().st_size > 10_000
    assert len((tmp_path / "evals.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize("name", ["nets/0002.json", "evals/0001.json"])
def test_a_report_of_a_damaged_run(tmp_path, whole, capsys, name: str):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / name).write_bytes((run / name).read_bytes()[:20])
    assert main(["report", str(run), "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert (f"{run / name}' cannot be read" in printed, printed.count("\n")) == (True, 1)
