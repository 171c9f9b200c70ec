"""Local tables and data sets by name: which column is text, what is held out, what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

import pytest
from corpora import CACHED, documents, hub_shaped, sentence

from eggroll.data.columns import ColumnFile
from eggroll.data.corpus import TextCorpus, load_corpus
from eggroll.data.text import Text
from eggroll.errors import InputError
from eggroll.training.config import Config
from eggroll.training.run import validation_words


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("EGGROLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def hub(tmp_path) -> Path:
    return hub_shaped(tmp_path / "hub", "jsonl")


def table(path: Path, columns: dict[str, list]) -> Path:
    """A local table of the kind that its name says, written as its users write it."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    made = pa.table(columns)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(made, path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(made, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
            writer.write_table(made)
    else:
        path.write_text("\n".join(map(json.dumps, made.to_pylist())))
    return path


LINES = [f"line {i} of a table" for i in range(40)]


def lines_of(corpus: TextCorpus) -> dict[str, list[str]]:
    text = Text(corpus._arrays["train"], corpus._arrays["valid"], corpus.about)
    return {side: [d.decode() for d in found] for side, found in documents(text).items()}


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv", "arrow"])
def test_local_tables_hold_out_a_twentieth(kind: str, tmp_path, cache, capsys):
    path = table(tmp_path / f"my table.{kind}", {"n": [*range(40)], "words": LINES})
    found = lines_of(load_corpus(str(path)))
    assert sorted(found["train"] + found["valid"]) == sorted(LINES)
    assert len(found["valid"]) == 2
    assert found["train"] == [line for line in LINES if line not in found["valid"]]
    lowest = sorted(LINES, key=lambda line: hashlib.md5(line.encode()).digest())[:2]
    assert sorted(found["valid"]) == sorted(lowest)
    capsys.readouterr()
    assert lines_of(load_corpus(str(path))) == found
    assert capsys.readouterr().err == ""  # from the cache
    table(path, {"n": [1, 2, 3], "words": LINES[:3]})
    assert sum(map(len, lines_of(load_corpus(str(path))).values())) == 3


def test_another_share_has_a_cache_of_its_own(tmp_path, cache, capsys):
    path = table(tmp_path / "lines.jsonl", {"text": LINES})
    usual = lines_of(load_corpus(str(path)))
    more = lines_of(load_corpus(str(path), val_share=0.3))
    assert (len(usual["valid"]), len(more["valid"])) == (2, 12)
    assert set(usual["valid"]) < set(more["valid"])  # the lowest digests, and others
    assert sorted(more["train"] + more["valid"]) == sorted(LINES)
    capsys.readouterr()
    assert lines_of(load_corpus(str(path), val_share=0.3)) == more
    assert lines_of(load_corpus(str(path))) == usual
    assert capsys.readouterr().err == ""  # both from the cache
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 2


def test_a_validation_split_of_its_own_wins_over_a_share(hub, cache, capsys):
    for share in (0.3, 0.05, 0.1):  # one cache, whichever comes first
        corpus = load_corpus(f"hf:{hub}", val_share=share)
        assert lines_of(corpus) == CACHED
        assert corpus.about["val_share"] is None
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 1
    options = Config(data=f"hf:{hub}", val_share=0.3)
    said = "validation: a split of its own, 1 documents; --val-share 0.3 is not used"
    assert validation_words(corpus, options) == (said,)


def test_a_column_is_found_or_named(tmp_path):
    columns = {"title": [f"t{i}" for i in range(40)], "body": LINES}
    path = table(tmp_path / "two.jsonl", columns)
    with pytest.raises(
        InputError, match=r"has 2 columns of text \(title, body\): name one"
    ) as error:
        load_corpus(str(path))
    sentence(error)
    assert sorted(chain(*lines_of(load_corpus(f"{path}:body")).values())) == sorted(LINES)
    assert set(lines_of(load_corpus(f"{path}:title"))["train"]) < set(columns["title"])
    with pytest.raises(InputError, match="no column 'text', but there are title, body"):
        load_corpus(f"{path}:text")
    table(path, {"text": LINES, "more": LINES, "n": [*range(40)]})
    assert len(lines_of(load_corpus(str(path)))["valid"]) == 2
    with pytest.raises(InputError, match="the column 'n' holds 0, which is no text"):
        load_corpus(f"{path}:n")
    with pytest.raises(InputError, match=r"has no columns of text \(n\): give a table that has"):
        load_corpus(str(table(tmp_path / "numbers.csv", {"n": [1, 2]})))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv", "arrow"])
def test_a_columns_name_may_have_colons(tmp_path, suffix):
    other = [f"t{i}" for i in range(40)]
    path = table(tmp_path / f"t.{suffix}", {"a:b": LINES, ":": other, "": other})
    for name, texts in (("a:b", LINES), (":", other)):
        assert sorted(chain(*lines_of(load_corpus(f"{path}:{name}")).values())) == sorted(texts)
    with pytest.raises(InputError, match="no column 'a:c', but there are a:b, :, "):
        load_corpus(f"{path}:a:c")


def test_dates_are_no_text(tmp_path):
    days = [f"2024-01-{i % 28 + 1:02}" for i in range(40)]
    path = table(tmp_path / "days.jsonl", {"text": LINES, "day": days})
    assert sorted(chain(*lines_of(load_corpus(str(path))).values())) == sorted(LINES)
    with pytest.raises(InputError, match="'day' holds 2024-01-01 00:00:00, which is no"):
        load_corpus(f"{path}:day")
    with pytest.raises(InputError, match=r"no columns of text \(text\): .* dates do not count"):
        load_corpus(str(table(path, {"text": days})))


def test_every_value_of_a_csv_is_a_text_as_it_stands(tmp_path):
    """Also what stands for none elsewhere, and numbers, in columns of words."""
    rare = ["NA", "null", "None", "nan", "007", "1e3", "true", '"quoted, twice"']
    path = tmp_path / "rare.csv"
    path.write_text("id,text\n" + "".join(f"{i},{v}\n" for i, v in enumerate(rare * 5)))
    want = sorted([*rare[:-1], "quoted, twice"] * 5)
    for name in (str(path), f"{path}:text"):
        assert sorted(chain(*lines_of(load_corpus(name)).values())) == want
    assert sorted(chain(*lines_of(load_corpus(f"{path}:id")).values())) == sorted(
        map(str, range(40))
    )


def test_a_column_that_turns_to_numbers_is_one_of_words(tmp_path):
    path = tmp_path / "long.csv"
    words = [f"word {i}" for i in range(12_000)] + [f"{i:06}" for i in range(12_000)]
    path.write_text("text\n" + "".join(f"{word}\n" for word in words))
    assert sorted(chain(*lines_of(load_corpus(str(path))).values())) == sorted(words)


def test_rows_without_text_are_counted(tmp_path, capsys):
    path = tmp_path / "half.jsonl"
    rows = [{"text": f"line {i}"} if i % 3 else {"other": 1} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sum(map(len, lines_of(load_corpus(str(path))).values())) == 40
    assert "half.jsonl: 20 rows of the train split have no text" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["", ":default", ":default:text", "::text", ":text"])
def test_data_sets_of_the_hub_by_name(hub, words: str):
    """A folder of the hub's shape stands for one; a word alone is a configuration or a column."""
    found = lines_of(load_corpus(f"hf:{hub}{words}"))
    assert found == CACHED


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("hf:", "is no data set of the hub"),
        ("hf:a:b:c:d", "is no data set of the hub"),
        ("hf:{hub}:nothing", "no column 'nothing', but there are text"),
        ("hf:{hub}:nothing:text", "BuilderConfig 'nothing' not found"),
        ("tinystory", "did you mean tinystories"),
        ("someone/else", "write hf:someone/else"),
        ("jeankaddour/minipiles", "did you mean minipile?"),
        ("stdlb", "did you mean stdlib"),
        ("nothing like it", "is unknown: give --data"),
    ],
)
def test_near_misses_are_told_what_to_write(hub, words: str, says: str):
    with pytest.raises(InputError, match=re.escape(says)) as error:
        load_corpus(words.format(hub=hub))
    sentence(error)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("torn.parquet", b"PAR1 torn", "cannot be read as parquet"),
        ("torn.jsonl", b'{"text": ', "cannot be read as json"),
        ("empty.csv", b"", "cannot be read as csv"),
        ("one.jsonl", b'{"text": "a"}', "has 1 distinct documents: two are needed"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, cache, name: str, content: bytes, says: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says) as error:
        load_corpus(str(tmp_path / name))
    sentence(error)
    assert all(path.suffix in (".lock", ".partial") for path in cache.iterdir())


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("q?.jsonl", "qz.jsonl"),
        ("d[12].jsonl", "d1.jsonl"),
        ("a*b.csv", "aXb.csv"),
        ("[!a].parquet", "z.parquet"),
        ("**.arrow", "z.arrow"),
    ],
)
def test_a_table_is_its_name_and_no_pattern(tmp_path, name: str, other: str):
    table(tmp_path / name, {"text": LINES})
    table(tmp_path / other, {"text": [f"another {i}" for i in range(40)]})
    found = lines_of(load_corpus(str(tmp_path / name)))
    assert sorted(found["train"] + found["valid"]) == sorted(LINES)


def test_a_path_that_means_a_file_inside_another_is_refused(tmp_path):
    path = table(tmp_path / "a::b.jsonl", {"text": LINES})
    with pytest.raises(InputError, match="has '::' in its path") as error:
        load_corpus(str(path))
    sentence(error)
    path = table(tmp_path / "a::b.parquet", {"text": LINES})
    assert sum(map(len, lines_of(load_corpus(str(path))).values())) == len(LINES)


@contextmanager
def listener() -> Iterator[tuple[str, list[bytes]]]:
    """An address on this machine, and what came to it."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    seen.append(connection.recv(4096))
                    connection.close()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def declaring(texts: dict[str, list], media: dict[str, list], feature: str):
    """A table of Arrow whose metadata declare some columns as media at these addresses."""
    import pyarrow as pa

    stored = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {name: pa.array(values) for name, values in texts.items()}
    for name, paths in media.items():
        columns[name] = pa.array([{"bytes": None, "path": path} for path in paths], stored)
    features = {name: {"dtype": "string", "_type": "Value"} for name in texts}
    features |= {name: {"_type": feature} for name in media}
    facts = json.dumps({"info": {"features": features}})
    return pa.table(columns).replace_schema_metadata({"huggingface": facts})


@pytest.mark.parametrize("kind", ["parquet", "arrow", "hub"])
@pytest.mark.parametrize("feature", ["Image", "Audio"])
def test_metadata_of_a_table_open_nothing(tmp_path, kind: str, feature: str):
    """Neither the column that they declare is fetched, nor the text, if they declare that."""
    import pyarrow as pa
    import pyarrow.parquet

    def write(made) -> str:
        if kind == "arrow":
            path = tmp_path / "t.arrow"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
                writer.write_table(made)
            return str(path)
        path = tmp_path / ("hub/data/train.parquet" if kind == "hub" else "t.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(made, path)
        return f"hf:{tmp_path}/hub" if kind == "hub" else str(path)

    with listener() as (address, seen):
        addresses = [f"{address}/{i}.png" for i in range(40)]
        path = write(declaring({"text": LINES}, {"picture": addresses}, feature))
        words = "::" if kind == "hub" else ":"
        found = lines_of(load_corpus(f"{path}{words}text"))
        assert sorted(found["train"] + found["valid"]) == sorted(LINES)
        with pytest.raises(InputError, match="which is no text: name one of text"):
            load_corpus(f"{path}{words}picture")
        path = write(declaring({"more": LINES}, {"text": addresses}, feature))
        with pytest.raises(InputError, match="which is no text"):
            load_corpus(f"{path}{words}text", val_share=0.1)
        assert seen == []


def test_an_interrupted_table_of_arrow_goes_on_from_its_row(tmp_path):
    lines = [f"line {i}" for i in range(3500)]
    path = table(tmp_path / "t.parquet", {"text": lines, "n": [*range(3500)]})
    file = ColumnFile(str(path), "parquet")
    for first in (0, 1, 999, 1000, 1001, 3499, 3500):
        batches = list(file.texts("text", first))
        assert [text for texts, _ in batches for text in texts] == lines[first:]
        assert [row for _, row in batches] == [r for r in (1000, 2000, 3000, 3500) if r > first]
