"""What others may have put in the way: links, caches of other users, headers, hostile files."""

from __future__ import annotations

import json
import os
import stat
import threading
import zlib
from pathlib import Path

import pytest
from corpora import sentence

from eggroll.data.codings import read_tokenizer
from eggroll.data.corpus import load_corpus
from eggroll.errors import InputError, object_in
from eggroll.files import check_own, check_place, locked, replacing, write_whole
from eggroll.training import replay_log

# Files and links.


def test_a_planted_link_is_neither_followed_nor_kept(tmp_path: Path):
    other, path = tmp_path / "other", tmp_path / "run" / "checkpoint"
    other.write_bytes(b"precious")
    path.parent.mkdir()
    path.with_name(".checkpoint.partial").symlink_to(other)
    write_whole(path, b"state")
    assert (other.read_bytes(), path.read_bytes()) == (b"precious", b"state")
    assert os.listdir(path.parent) == ["checkpoint"]
    path.unlink()
    path.symlink_to(other)  # the name itself: the link is replaced
    write_whole(path, b"state")
    assert (other.read_bytes(), path.is_symlink()) == (b"precious", False)


@pytest.mark.parametrize("way", ["itself", "a link to it"])
def test_what_is_no_regular_file_keeps_its_place(tmp_path: Path, way: str):
    """As a device, which root could replace."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    path = pipe if way == "itself" else link
    with pytest.raises(InputError, match="is no regular file"):
        write_whole(path, b"state")
    with pytest.raises(InputError, match="is no place for a file"):
        check_place("--json", str(path))
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_folder_that_may_not_be_written_to_is_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By what the system says of the folder, as root may write to any; a file there or not."""
    for name in ("new.json", "old.json"):
        (tmp_path / "old.json").touch()
        check_place("--json", str(tmp_path / name))
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, mode: path != tmp_path or not mode & os.W_OK)
            check_place("--json", "")
            check_place("--json", "-", screen=True)
            with pytest.raises(InputError, match="cannot be written to; grant access there, or"):
                check_place("--json", str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_read_access_alone_is_no_place(tmp_path: Path):
    tmp_path.chmod(0o555)
    with pytest.raises(InputError, match="cannot be written to"):
        check_place("--json", str(tmp_path / "out.json"))


def test_what_cannot_be_removed_is_left_alone(tmp_path: Path):
    """As the file of another user in a folder that all may write to."""
    path, taken = tmp_path / "checkpoint", tmp_path / ".checkpoint.partial"
    taken.mkdir()
    write_whole(path, b"state")
    assert path.read_bytes() == b"state"
    assert sorted(os.listdir(tmp_path)) == [".checkpoint.partial", "checkpoint"]


def test_two_writers_have_files_of_their_own(tmp_path: Path):
    """Neither puts half a file of the other in its place."""
    path = tmp_path / "shared"
    with replacing(path) as first:
        first.write(b"first, ")
        first.flush()
        write_whole(path, b"second")
        assert path.read_bytes() == b"second"
        first.write(b"whole")
    assert path.read_bytes() == b"first, whole"
    assert os.listdir(tmp_path) == ["shared"]


def test_many_writers_leave_one_whole_file(tmp_path: Path):
    path = tmp_path / "shared"
    contents = [bytes([65 + i]) * 50_000 for i in range(8)]

    def write(data: bytes) -> None:
        for _ in range(25):
            write_whole(path, data)

    threads = [threading.Thread(target=write, args=[data]) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["shared"]


def test_a_lock_is_no_link_and_empties_no_file(tmp_path: Path):
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    (tmp_path / "cache.lock").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "cache.lock"):
        pass
    assert other.read_bytes() == b"precious"
    (tmp_path / "own.lock").write_bytes(b"kept")
    with locked(tmp_path / "own.lock"):
        assert (tmp_path / "own.lock").read_bytes() == b"kept"


# The cache.


def test_a_cache_of_another_user_is_not_believed(tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"")
    check_own(path)
    path.chmod(0o666)
    check_own(path)
    with pytest.raises(InputError, match="can be written by everybody"):
        check_own(path, code=True)
    real = os.stat

    def foreign(name, *words, **named):
        facts = real(name, *words, **named)
        if str(name) == str(path):
            facts = os.stat_result((*facts[:4], 4242, *facts[5:10]))
        return facts

    monkeypatch.setattr(os, "stat", foreign)
    with pytest.raises(InputError, match="belongs to user 4242, so it is not used") as error:
        check_own(path)
    sentence(error)


def test_a_cache_of_root_is_believed_by_everybody(tmp_path: Path, monkeypatch):
    """As one that an administrator filled; any other user's is not."""
    owner = 0
    path = tmp_path / "file"
    path.write_bytes(b"")
    real = os.stat

    def owned(name, *words, **named):
        facts = real(name, *words, **named)
        return os.stat_result((*facts[:4], owner, *facts[5:10]))

    monkeypatch.setattr(os, "stat", owned)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_own(path)
    for owner in (1, 999):
        with pytest.raises(InputError, match=f"belongs to user {owner}, "):
            check_own(path)
    owner = 1000
    check_own(path)


@pytest.mark.parametrize("part", ["folder", "library"])
def test_a_compiled_world_that_all_may_write_is_not_loaded(tmp_path: Path, monkeypatch, part: str):
    from eggroll import native

    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "one.c"
    source.write_text("int one = 1;\n")
    library = native.build(source).path
    assert not stat.S_IMODE(library.stat().st_mode) & stat.S_IWOTH
    (library if part == "library" else library.parent).chmod(0o777)
    with pytest.raises(InputError, match="can be written by everybody") as error:
        native.build(source)
    sentence(error)


# Headers and files of JSON.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "holds [1] where an object is needed"),
        ("{", "is not valid JSON"),
        (b"\xff\xfe\xfa", "is not valid JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a": "1", "b": 2}', "has '1' as 'a' where int is needed"),
        ('{"a": true, "b": 2}', "has True as 'a' where int is needed"),
        ('{"a": 1.0}', "has 1.0 as 'a' where int is needed"),
        ("{}", "has None as 'a' where int is needed"),
        ('{"a": 1, "c": []}', "has [] as 'c' where str | None is needed"),
    ],
)
def test_objects_have_the_types_that_their_readers_count_on(text, says: str):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        object_in(text, {"a": int, "c": str | None})
    assert str(error.value).startswith(says)
    assert object_in('{"a": 1, "b": []}', {"a": int, "c": str | None}) == {"a": 1, "b": []}


HEADER = {"kind": "eggroll", "pairs": 4, "config": {"data": "count"}, "network": "ab"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"pairs": "4"}, {"pairs": True}, {"pairs": 4.0}, {"pairs": None}, {"pairs": 0},
        {"pairs": 1 << 40}, {"config": []}, {"config": "x"}, {"config": None}, {"kind": 5},
        {"kind": []}, {"network": 7}, {"network": {}}, {"network": ["ab"]},
        {"config": {"pop": "8"}}, {"config": {"pop": []}}, {"config": {"data": 5}},
        {"declaration": {}}, {"score_bits": "4"},
    ],
    ids=str,
)  # fmt: skip
def test_a_replay_log_of_other_types_is_one_sentence(tmp_path: Path, wrong: dict):
    from eggroll import replay

    text = json.dumps(HEADER | wrong).encode()
    front = replay_log.FRONT.pack(replay_log.MAGIC, replay_log.VERSION, len(text)) + text
    (tmp_path / "replay.bin").write_bytes(front + replay_log.CHECK.pack(zlib.crc32(front)))
    with pytest.raises(InputError) as error:
        replay.open_log(str(tmp_path))
    sentence(error)


# Tables and tokenizers.


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl"])
def test_a_table_of_no_rows_is_one_sentence(tmp_path: Path, monkeypatch, kind: str):
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    path, made = tmp_path / f"t.{kind}", pa.table({"text": pa.array([], pa.string())})
    if kind == "parquet":
        pyarrow.parquet.write_table(made, path)
    elif kind == "csv":
        pyarrow.csv.write_csv(made, path)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
            writer.write_table(made)
    else:
        path.write_text("")
    with pytest.raises(InputError, match=r"distinct documents|no text|cannot be read") as error:
        load_corpus(str(path))
    sentence(error)


def tokenizer(**changes) -> bytes:
    """A tokenizer.json of bytes, with parts of it or of its model changed."""
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270, show_progress=False, initial_alphabet=alphabet
    )
    made.train_from_iterator(["the hen laid an egg"] * 9, trainer)
    facts = json.loads(made.to_str())
    for name, value in changes.items():
        (facts["model"] if name in facts["model"] else facts)[name] = value
    return json.dumps(facts).encode()


def test_a_tokenizer_that_panics_is_one_sentence(tmp_path: Path):
    """A panic of Rust is no Exception of Python."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer())
    assert read_tokenizer(path).tokens("the hen", "--prompt")
    path.write_bytes(tokenizer(continuing_subword_prefix="a prefix that no token has"))
    with pytest.raises(InputError, match=r"is no tokenizer\.json \(range end index") as error:
        read_tokenizer(path)
    sentence(error)
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}
    path.write_bytes(tokenizer(normalizer=charsmap))
    coding = read_tokenizer(path)  # the panic comes with the first text
    for use in (lambda: coding.tokens("a", "--prompt"), lambda: list(coding.documents([b"a"]))):
        with pytest.raises(InputError, match=r"is no tokenizer\.json \(index out of") as error:
            use()
        sentence(error)


def test_an_interrupt_is_none_of_the_tokenizers(tmp_path: Path):
    from eggroll.data import codings

    for stop in (KeyboardInterrupt, SystemExit, MemoryError):
        with pytest.raises(stop), codings._refusing("a tokenizer"):
            raise stop
