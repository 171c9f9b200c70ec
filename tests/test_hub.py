"""Data sets of the Hugging Face hub come into the cache once, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from corpora import CACHED, STORIES, documents, hub_shaped, sentence

from eggroll.data import hub as hub_data
from eggroll.data import hub as tables
from eggroll.data.corpus import TextCorpus, load_corpus
from eggroll.data.text import Text
from eggroll.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["parquet", "jsonl"])
def hub(request, tmp_path, monkeypatch) -> Path:
    """A dataset of the hub's shape in a local folder, in the place of tinystories."""
    folder = hub_shaped(tmp_path / "hub", request.param)
    monkeypatch.setitem(tables.HUB, "tinystories", str(folder))
    return folder


class FakeTable:
    """Texts without the package `datasets`; `streamed` has the splits, and the states begun at."""

    splits: ClassVar = {"train": "train", "valid": "validation"}
    texts_of: ClassVar = STORIES
    streamed: ClassVar[list] = []
    breaks = -1  # number of the batch that is never read
    error: ClassVar = KeyboardInterrupt

    def __init__(self, source):
        self.source = source

    def size(self, split):
        return None

    def texts(self, split, state=None):
        self.streamed.append((split, state))
        rows = self.texts_of[self.splits[split]]
        for at in range(state or 0, len(rows), 1000):
            if at // 1000 == self.breaks:
                raise self.error
            yield rows[at : at + 1000], at + 1000


@pytest.fixture
def fake_hub(monkeypatch):
    monkeypatch.setattr(FakeTable, "streamed", [])
    monkeypatch.setattr(hub_data, "Table", FakeTable)
    monkeypatch.setattr(hub_data, "NOTE_SECONDS", -1)
    return FakeTable


BOTH = [("train", None), ("valid", None)]


def check_cached(corpus: TextCorpus, cache: Path) -> None:
    text = Text(corpus._arrays["train"], corpus._arrays["valid"], corpus.about)
    split = documents(text)
    assert {side: [d.decode() for d in found] for side, found in split.items()} == CACHED
    files = {"train.bin", "valid.bin", "meta.json"}
    assert {path.name for path in (cache / "tinystories").iterdir()} == files
    assert {path.name for path in cache.iterdir()} == {"tinystories", "tinystories.lock"}
    tokens = corpus.streams("train", 2, 20, seed=0).batch(0).tokens
    assert bytes(tokens[0, :12].tolist()) == b"\0Once an egg"


def test_hub_dataset_is_streamed_into_the_cache_once(hub, cache, monkeypatch, capsys):
    check_cached(load_corpus("tinystories"), cache)
    assert "streaming" in capsys.readouterr().err
    monkeypatch.setattr(hub_data, "CacheWriter", None)
    check_cached(load_corpus("tinystories"), cache)
    assert capsys.readouterr() == ("", "")


def test_hub_arrays_are_mapped_read_only(fake_hub):
    data = load_corpus("tinystories")._arrays["train"]
    assert not data.flags.writeable
    assert isinstance(data.base, np.memmap)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda folder: (folder / "train.bin").write_bytes(b"\0cut"),
            "train.bin has the wrong size",
        ),
        (lambda folder: (folder / "valid.bin").unlink(), "damaged"),
        (lambda folder: (folder / "meta.json").write_text("{"), "damaged"),
        (lambda folder: (folder / "meta.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / "meta.json").unlink(), "damaged"),
        (
            lambda folder: (folder / "meta.json").write_text('{"version": 0, "dataset": ""}'),
            "another version or origin",
        ),
    ],
)
def test_damaged_cache_is_written_anew(fake_hub, cache, capsys, damage, words):
    load_corpus("tinystories")
    damage(cache / "tinystories")
    check_cached(load_corpus("tinystories"), cache)
    assert words in capsys.readouterr().err
    assert fake_hub.streamed == BOTH * 2


def test_processes_that_start_together_write_one_cache(fake_hub, cache):
    threads = [threading.Thread(target=load_corpus, args=["tinystories"]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_cached(load_corpus("tinystories"), cache)
    assert fake_hub.streamed == BOTH


@pytest.mark.parametrize("breaks", [0, 1, 2])
def test_an_interrupted_stream_goes_on(fake_hub, cache, monkeypatch, capsys, breaks: int):
    with monkeypatch.context() as patch:
        patch.setattr(FakeTable, "breaks", breaks)
        with pytest.raises(KeyboardInterrupt):
            load_corpus("tinystories")
    assert not (cache / "tinystories").exists()
    capsys.readouterr()
    del fake_hub.streamed[:]
    check_cached(load_corpus("tinystories"), cache)
    assert fake_hub.streamed == [("train", 1000 * breaks or None), ("valid", None)]
    assert ("going on" in capsys.readouterr().err) is (breaks > 0)


@pytest.mark.parametrize("damage", ["cut", "gone", "torn", "other"])
def test_what_an_interrupted_stream_left_counts_only_whole(
    fake_hub, cache, monkeypatch, damage: str
):
    with monkeypatch.context() as patch:
        patch.setattr(FakeTable, "breaks", 2)
        with pytest.raises(KeyboardInterrupt):
            load_corpus("tinystories")
    partial = cache / ".tinystories.partial"
    noted = partial / hub_data.PROGRESS_FILE
    if damage == "cut":
        os.truncate(partial / "train.bin", 100)
    elif damage == "gone":
        (partial / "train.bin").unlink()
    elif damage == "torn":
        noted.write_bytes(noted.read_bytes()[:-2])
    else:
        monkeypatch.setitem(tables.HUB, "tinystories", "another/origin")
    del fake_hub.streamed[:]
    check_cached(load_corpus("tinystories"), cache)
    assert fake_hub.streamed == BOTH


def test_a_killed_writer_leaves_nothing_that_counts(fake_hub, cache):
    program = """
import os, signal
from eggroll.data import hub
class Killed:
    splits = {"train": "train", "valid": "validation"}
    def __init__(self, source): self.source = source
    def size(self, split): return 10
    def texts(self, split, state=None):
        yield ["a story"] * 100_000, 1
        os.kill(os.getpid(), signal.SIGKILL)
hub.Table = Killed
from eggroll.data.corpus import load_corpus
load_corpus("tinystories")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (cache / ".tinystories.partial" / "train.bin").exists()
    check_cached(load_corpus("tinystories"), cache)


def test_dataset_without_text_is_refused(fake_hub, cache, monkeypatch):
    monkeypatch.setattr(FakeTable, "texts_of", {"train": ["", None, "\0"], "validation": ["a"]})
    with pytest.raises(InputError, match="has no text in its train split") as error:
        load_corpus("minipile")
    sentence(error)
    assert [path.name for path in cache.iterdir()] == ["minipile.lock"]


def test_cache_that_cannot_be_written_says_so(fake_hub, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be read or written") as error:
        load_corpus("tinystories")
    assert "EGGROLL_CACHE" in sentence(error)

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tinystories").touch()  # not ours to remove, and known before streaming
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "other"))
    with pytest.raises(InputError, match="Not a directory"):
        load_corpus("tinystories")
    assert fake_hub.streamed == []

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "full"))
    monkeypatch.setattr(hub_data, "_sync", full)
    with pytest.raises(InputError, match="No space left on device"):
        load_corpus("tinystories")
    assert not (tmp_path / "full" / "tinystories").exists()


def test_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    assert hub_data.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EGGROLL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert hub_data.cache_folder() == Path("/xdg/eggroll")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/hen")
    assert hub_data.cache_folder() == Path("/home/hen/.cache/eggroll")


def test_no_network_names_the_data_that_need_none(cache):
    program = """
from eggroll.data.corpus import load_corpus
from eggroll.errors import InputError
try:
    load_corpus("tinystories")
except InputError as error:
    print(error)
"""
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=offline, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == (
        "corpus 'tinystories' is not in the cache and cannot be streamed from the Hugging Face hub "
        "(OfflineModeIsEnabled): connect to the network, or use data that need none: stdlib, "
        "count, a file or a folder.\n"
    )
    assert [path.name for path in cache.iterdir()] == ["tinystories.lock"]


def test_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets") as error:
        load_corpus("minipile")
    sentence(error)


def test_importing_and_offline_corpora_load_no_hub_package():
    program = """
import sys
from eggroll.data.corpus import load_corpus
load_corpus("stdlib"), load_corpus("count")
print(sorted({"datasets", "huggingface_hub", "mlx", "rich"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
