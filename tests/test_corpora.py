"""Files, folders and the standard library are cut as the docstrings say."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sysconfig
import time
from pathlib import Path

import pytest
from conftest import TINY, Command
from corpora import documents, prose, sentence, write_tree
from hypothesis import given
from hypothesis import strategies as st

from eggroll.data import text as corpora
from eggroll.data.corpus import load_corpus
from eggroll.errors import InputError


def test_file_is_cut_at_blank_lines_and_nothing_is_lost(tmp_path):
    content = prose(300_000)
    (tmp_path / "text").write_bytes(content)
    text = corpora.read_path(str(tmp_path / "text"))
    split = documents(text)
    pieces = list(corpora._pieces(content))
    assert b"".join(pieces) == content
    assert sorted(split["train"] + split["valid"]) == sorted(pieces)
    assert split["train"] == [piece for piece in pieces if piece in split["train"]]
    assert len(split["valid"]) == -(-len(pieces) // 20)
    assert all(piece.endswith(b"\n\n") and 4096 <= len(piece) < 4200 for piece in pieces[:-1])
    assert text.about["path"] == str(tmp_path / "text")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n", b"\r\n", b""])
@given(content=st.lists(st.integers(0, 20_000), max_size=6))
def test_pieces_keep_the_bytes_and_the_sizes(end, content):
    text = end.join(b"x" * length for length in content)
    pieces = list(corpora._pieces(text))
    assert b"".join(pieces) == text
    assert all(4096 <= len(piece) <= 16384 for piece in pieces[:-1])
    assert not pieces or 1 <= len(pieces[-1]) <= 16384


def test_pieces_fall_back_on_line_ends_then_on_sizes():
    lines = b"a" * 999 + b"\n"
    assert [len(piece) for piece in corpora._pieces(lines * 40)] == [16000, 16000, 8000]
    assert [len(piece) for piece in corpora._pieces(b"a" * 40_000)] == [16384, 16384, 7232]


def test_files_are_bytes_without_their_nuls(tmp_path):
    odd = b"\xff\xfe\x80 not UTF-8 \0\0 at all\n"
    (tmp_path / "odd").write_bytes(prose(40_000) + odd)
    split = documents(corpora.read_path(str(tmp_path / "odd")))
    rest = b"".join(split["train"] + split["valid"])
    assert len(rest) == 40_000 + len(odd) - 2
    assert odd.replace(b"\0", b"") in rest


NAMES = [f"{folder}/{i}.txt" for folder in ("b", "a", "b/a", "c d") for i in range(25)]


def test_folder_is_its_files_by_relative_path(tmp_path):
    write_tree(tmp_path, NAMES)
    text = corpora.read_path(str(tmp_path))
    split = documents(text)
    everything = {name: b"%s " % name.encode() * 50 for name in NAMES}
    for side in split.values():
        names = [document.split(b".txt ")[0].decode() + ".txt" for document in side]
        assert names == sorted(names)
        assert [everything[name] for name in names] == side
    assert len(split["valid"]) == 5
    assert not set(split["valid"]) & set(split["train"])
    assert text.about["files"] == 100


def test_split_knows_no_order(tmp_path, monkeypatch):
    write_tree(tmp_path / "one", NAMES)
    write_tree(tmp_path / "two", NAMES[::-1])
    one = corpora.read_path(str(tmp_path / "one"))
    walk = os.walk

    def walk_backwards(*args, **kwargs):
        for folder, folders, names in walk(*args, **kwargs):
            folders.reverse()
            yield folder, folders, names[::-1]

    monkeypatch.setattr(os, "walk", walk_backwards)
    two = corpora.read_path(str(tmp_path / "two"))
    assert one.about["splits"] == two.about["splits"]


def test_split_is_stable_under_additions_and_keeps_copies_together(tmp_path):
    write_tree(tmp_path, NAMES)
    before = set(documents(corpora.read_path(str(tmp_path)))["valid"])
    for side in (before, {b"copied in train"}):
        (tmp_path / f"copy {len(side)}").write_bytes(min(side))
        (tmp_path / f"again {len(side)}").write_bytes(min(side))
    split = documents(corpora.read_path(str(tmp_path)))
    assert not set(split["valid"]) & set(split["train"])
    assert len(set(split["valid"])) == 6  # a twentieth of 101 distinct documents, rounded up
    assert len(before - set(split["valid"])) <= 1


def test_few_files_are_cut_so_that_validation_is_a_twentieth(tmp_path):
    for i in range(3):
        (tmp_path / f"book {i}").write_bytes(prose(200_000, b"book %d: " % i))
    text = corpora.read_path(str(tmp_path))
    split = documents(text)
    assert len(text.valid) / (len(text.train) + len(text.valid)) == pytest.approx(0.05, abs=0.01)
    assert {document[:6] for document in split["train"]} == {b"book 0", b"book 1", b"book 2"}


def test_folder_leaves_out_what_is_no_text(tmp_path, monkeypatch):
    write_tree(tmp_path, NAMES)
    whole = corpora.read_path(str(tmp_path)).about["splits"]
    (tmp_path / "binary").write_bytes(b"ELF\0" + prose(9000))
    (tmp_path / "empty").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / ".hidden").write_bytes(b"secret")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"secret")
    os.mkfifo(tmp_path / "pipe")
    about = corpora.read_path(str(tmp_path)).about
    assert about["splits"] == whole
    assert about["skipped"] == {"binary": 2, "unreadable": 1, "empty": 1}
    (tmp_path / "late").write_bytes(b"x" * 8192 + b"\0 a NUL after the first 8 kB")
    assert corpora.read_path(str(tmp_path)).about["files"] == 101


def test_data_that_is_not_there_names_what_is(tmp_path):
    for name in ("tinystory", str(tmp_path / "missing.txt"), "", "a\0b"):
        with pytest.raises(InputError, match="is unknown") as error:
            load_corpus(name)
        for known in ("stdlib", "count", "tinystories", "minipile", "file or folder", repr(name)):
            assert known in sentence(error)


def test_empty_small_and_special_files_are_refused(tmp_path):
    path = tmp_path / "file"
    for content, words in [
        (b"", "is empty"),
        (b"\0\0", "is empty"),
        (b"egg", r"too small \(3 bytes"),
        (b"a" * 16384 * 3, r"too small \(49,152 bytes, one distinct document"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InputError, match=words) as error:
            load_corpus(str(path))
        assert "give --data" in sentence(error)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder") as error:
        load_corpus(str(tmp_path / "pipe"))
    sentence(error)


def test_unreadable_file_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"egg")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)") as error:
        load_corpus(str(tmp_path / "file"))
    sentence(error)


def test_folder_without_text_says_what_it_has(tmp_path, monkeypatch):
    (tmp_path / "binary").write_bytes(b"\0")
    (tmp_path / ".hidden").write_bytes(b"text")
    with pytest.raises(InputError, match="1 binary, 0 unreadable, 0 empty") as error:
        load_corpus(str(tmp_path))
    sentence(error)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(corpora, "_read_text", refuse)
    with pytest.raises(InputError, match="0 binary, 1 unreadable"):
        load_corpus(str(tmp_path))


# The standard library


def test_stdlib_is_quick_portable_and_split():
    start = time.perf_counter()
    corpus = load_corpus("stdlib")
    assert time.perf_counter() - start < 2
    assert (corpus.vocabulary, corpus.warmup) == (256, 0)
    assert corpus.about["python"] == platform.python_version()
    json.dumps(corpus.about)
    splits = corpus.about["splits"]
    assert splits["train"]["bytes"] > 5_000_000
    assert 0.02 < splits["valid"]["bytes"] / splits["train"]["bytes"] < 0.1
    assert load_corpus("stdlib").about == corpus.about
    start, bits = time.perf_counter(), corpus.baselines()
    assert time.perf_counter() - start < 2
    assert 3 < bits["bigram"] < bits["unigram"] < 6


def test_stdlib_leaves_out_what_differs_between_installations(tmp_path, monkeypatch):
    kept = [f"module{i}.py" for i in range(30)] + ["json/__init__.py", "unittest/mock.py"]
    dropped = [
        "json/notes.txt",
        "test/a.py",
        "json/tests/a.py",
        "site-packages/a.py",
        "tkinter/a.py",
    ]
    dropped += [
        "_sysconfigdata_linux.py",
        "config-3/a.py",
        "sitecustomize.py",
        "pydoc_data/topics.py",
    ]
    write_tree(tmp_path, kept + dropped)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    text = corpora.read_stdlib()
    split = documents(text)
    assert len(split["train"] + split["valid"]) == len(kept)
    # The side of a module is decided by its path, whatever a patch release does to its bytes.
    held_out = sorted(kept, key=lambda name: hashlib.md5(name.encode()).digest())[:2]
    assert split["valid"] == [b"%s " % name.encode() * 50 for name in sorted(held_out)]


def test_stdlib_without_sources_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "python311.zip"))
    with pytest.raises(InputError, match="corpus 'stdlib' needs") as error:
        load_corpus("stdlib")
    sentence(error)


def test_the_share_held_out_is_an_exact_decimal():
    """0.05 of 140 are 7, where 0.05 in binary is more than a twentieth; the default is that."""
    keys = [b"%d" % i for i in range(1000)]
    for count in range(2, 1000, 46):
        digests = sorted(hashlib.md5(key).digest()[:8] for key in keys[:count])
        for share, parts in ((0.05, 20), (0.1, 10), (0.5, 2)):
            held = corpora.held_out(keys[:count], share)
            lowest = set(digests[: -(-count // parts)])
            found = {
                hashlib.md5(key).digest()[:8] for key, out in zip(keys, held, strict=False) if out
            }
            assert found == lowest
    assert sum(corpora.held_out(keys[:140], corpora.VAL_SHARE)) == 7
    assert sum(corpora.held_out(keys[:3], 0.999)) == 2  # one is left for training


def test_the_share_of_a_folder(tmp_path: Path):
    write_tree(tmp_path, [f"{i}.txt" for i in range(100)])
    usual, more = (documents(corpora.read_path(str(tmp_path), *share)) for share in ((), (0.2,)))
    assert (len(usual["valid"]), len(more["valid"])) == (5, 20)
    assert set(usual["valid"]) < set(more["valid"])


@pytest.mark.usefixtures("no_curves")
def test_a_run_names_the_share_and_goes_on_with_it_alone(tmp_path: Path, call: Command):
    write_tree(tmp_path / "text", [f"{i}.txt" for i in range(40)])
    words = [*TINY, "--data", tmp_path / "text", "--val-share", "0.25", "--out", tmp_path / "run"]
    assert "\nvalidation: 10 of 40 documents, by --val-share 0.25\n" in call(*words).out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["val_share"] == 0.25
    refused = call("--resume", tmp_path / "run", "--val-share", "0.1")
    assert (refused.code, "--val-share is 0.1, but the run" in refused.err) == (2, True)
    assert call("--resume", tmp_path / "run").code == 0


@pytest.mark.parametrize("share", ["0", "0.51", "nan", "-1"])
def test_a_share_out_of_range_is_refused(call: Command, share: str):
    refused = call("--data", "stdlib", "--val-share", share)
    assert (refused.code, refused.out) == (2, "")
    assert "a number above 0 and up to 0.5 is needed; try --val-share 0.05." in refused.err


def test_counting_holds_nothing_out(call: Command):
    refused = call("--data", "count", "--val-share", "0.1")
    assert (refused.code, "its validation streams never end" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text, ""),
        (lambda text: text[:9000] + b"\0\0" + text[9000:], "2 NUL bytes were dropped from '"),
        (lambda text: b"\0" + text, "1 NUL bytes were dropped from '"),
        (lambda text: text.decode().encode("utf-16"), "as from a binary file or UTF-16"),
        (lambda text: text + "é".encode("latin-1"), "odd.txt': its bytes are read as they are"),
        (lambda text: text[:9000], "% of the bytes are held out for validation where --val-share"),
    ],
)
def test_odd_data_are_one_warning(tmp_path: Path, text: Path, call: Command, change, says: str):
    data = tmp_path / "odd.txt"
    data.write_bytes(change(text.read_bytes()))
    words = [*TINY, "--pop", 8, "--steps", 1, "--data", data, "--out", tmp_path / "run"]
    ended = call(*words)
    assert ended.code == 0, ended.err
    warned = [line for line in ended.out.splitlines() if line.startswith("warning: ")]
    assert len(warned) == bool(says)
    assert says in "".join(warned)


def test_binaries_left_out_of_a_folder_are_one_warning(tmp_path: Path, text: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_bytes(text.read_bytes())
    (folder / "empty.txt").write_bytes(b"")
    assert corpora.read_path(str(folder)).warnings == ()
    for name in ("b.bin", "c.bin"):
        (folder / name).write_bytes(b"x\0y" * 99)
    assert corpora.read_path(str(folder)).warnings == ("files left out: 2 binary",)
    for i in range(3):
        (folder / f"l{i}.txt").write_bytes(text.read_bytes() + b"\xe9")
    (_, other) = corpora.read_path(str(folder)).warnings
    assert other == "no UTF-8 in 'l0.txt' and 2 more: its bytes are read as they are"
