"""Data sets of the Hugging Face hub come into the cache once, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from corpora import documents, sentence

from eggroll.data import hub as hub_data
from eggroll.data.corpora import Text
from eggroll.data.streams import TextCorpus, load_corpus
from eggroll.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


STORIES = {
    "train": ["Once an egg", "", None, "rolled\0 away.", "Ünïcödé"]
    + [f"t{i}" for i in range(2000)],
    "validation": ["A hen looked on."],
}
CACHED = {
    "train": ["Once an egg", "rolled away.", "Ünïcödé"] + [f"t{i}" for i in range(2000)],
    "valid": ["A hen looked on."],
}


@pytest.fixture(params=["parquet", "jsonl"])
def hub(request, tmp_path, monkeypatch) -> Path:
    """A dataset of the hub's shape in a local folder, in the place of tinystories."""
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    for split, texts in STORIES.items():
        if request.param == "parquet":
            import pyarrow as pa
            import pyarrow.parquet

            name = folder / f"{split}-00000-of-00001.parquet"
            pyarrow.parquet.write_table(pa.table({"text": texts}), name)
        else:
            rows = (json.dumps({"text": text}) for text in texts)
            (folder / f"{split}.jsonl").write_text("\n".join(rows))
    monkeypatch.setitem(hub_data.HUB, "tinystories", str(folder.parent))
    return folder.parent


@pytest.fixture
def fake_hub(monkeypatch):
    """Texts without the package `datasets`; the list counts the splits streamed."""
    streamed: list[str] = []

    def texts(name, split):
        streamed.append(split)
        yield STORIES[hub_data.HUB_SPLITS[split]]

    monkeypatch.setattr(hub_data, "_hub_texts", texts)
    return streamed


def check_cached(corpus: TextCorpus, cache: Path) -> None:
    text = Text(corpus._bytes["train"], corpus._bytes["valid"], corpus.about)
    split = documents(text)
    assert {side: [d.decode() for d in found] for side, found in split.items()} == CACHED
    files = {"train.bin", "valid.bin", "meta.json"}
    assert {path.name for path in (cache / "tinystories").iterdir()} == files
    assert {path.name for path in cache.iterdir()} == {"tinystories", "tinystories.lock"}
    tokens, _ = corpus.streams("train", 2, 20, seed=0).batch(0)
    assert bytes(tokens[0, :12].tolist()) == b"\0Once an egg"


def test_hub_dataset_is_streamed_into_the_cache_once(hub, cache, monkeypatch, capsys):
    check_cached(load_corpus("tinystories"), cache)
    assert "streaming" in capsys.readouterr().err
    monkeypatch.setattr(hub_data, "_write_cache", None)
    check_cached(load_corpus("tinystories"), cache)
    assert capsys.readouterr() == ("", "")


def test_hub_arrays_are_mapped_read_only(fake_hub):
    data = hub_data.read_hub("tinystories").train
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
    assert fake_hub == ["train", "valid"] * 2


def test_processes_that_start_together_write_one_cache(fake_hub, cache):
    threads = [threading.Thread(target=hub_data.read_hub, args=["tinystories"]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_cached(load_corpus("tinystories"), cache)
    assert fake_hub == ["train", "valid"]


def test_interrupted_stream_leaves_nothing(fake_hub, cache, monkeypatch):
    def interrupted(name, split):
        yield ["a story"]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hub_data, "_hub_texts", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load_corpus("tinystories")
    assert [path.name for path in cache.iterdir()] == ["tinystories.lock"]
    check_cached(load_corpus("tinystories"), cache)


def test_killed_writer_leaves_nothing_that_counts(fake_hub, cache):
    program = """
import os, signal
from eggroll.data import hub as hub_data
def killed(name, split):
    yield ["a story"] * 100_000
    os.kill(os.getpid(), signal.SIGKILL)
hub_data._hub_texts = killed
hub_data.read_hub("tinystories")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (cache / ".tinystories.partial" / "train.bin").exists()
    check_cached(load_corpus("tinystories"), cache)


def test_dataset_without_text_is_refused(cache, monkeypatch):
    monkeypatch.setattr(hub_data, "_hub_texts", lambda name, split: iter([["", None, "\0"]]))
    with pytest.raises(InputError, match="has no text in its 'train' split") as error:
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
    assert fake_hub == []

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "full"))
    monkeypatch.setattr(hub_data, "_sync", full)
    with pytest.raises(InputError, match="No space left on device"):
        load_corpus("tinystories")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["tinystories.lock"]


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
from eggroll.data.streams import load_corpus
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
from eggroll.data.streams import load_corpus
load_corpus("stdlib"), load_corpus("count")
print(sorted({"datasets", "huggingface_hub", "mlx", "rich"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
