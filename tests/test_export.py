"""Exported networks run, and equal the engine in every bit: NumPy, C, ONNX and safetensors."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from networks import case_of
from networks_random import kinds, seeded_program

from eggroll import __main__ as commands
from eggroll import engines
from eggroll.engines import zero_state
from eggroll.errors import InputError
from eggroll.library import export_numpy
from eggroll.library.export import FORMATS, export
from eggroll.library.export_parts import Network
from eggroll.library.trainer import Trainer
from eggroll.networks import egg, initial_weights, mlp, nnue
from eggroll.spec.program import Batch, Program, program_in

CC = shutil.which("cc")


def recurrent() -> Program:
    """A state, an input, features, gates, a bias and outputs of every kind."""
    net = Program(width=6)
    x, s = net.stage("cell.", state=True)
    shown = net.relu(net.bias(net.linear(net.input(3), "in", 6), "b"))
    sparse = net.features("sparse", 9, 6, active=3, shift=1)
    both = net.linear(net.concat(shown, sparse), "both", 6)
    f = net.lookup(net.linear(s, "gate", 6), "sigmoid")
    net.mix(f, both, s, out=s)
    net.add(net.forget(f, both), s, out=x)
    x, s = net.stage("more.", state=True)
    h = net.add_bias(x, net.linear(s, "again", 6), "c")
    net.add(h, h, out=s)
    net.add(x, h, out=x)
    x, _ = net.stage("out.")
    h = net.norm(x, "norm")
    net.output(h, "seen")
    net.sums(h, "worth", 2)
    net.policy(h, "act", 3)
    return net


def alike() -> Program:
    """Names that are one identifier, or one in capitals."""
    net = Program()
    net.table("t a", np.arange(-127, 128) // 2)
    net.table("t_a", np.arange(127, -128, -1) // 3)
    x = net.input(5)
    h = net.lookup(net.linear(x, "w", 5), "t a")
    net.output(h, "a b")
    net.output(net.lookup(net.linear(x, "W", 5), "t_a"), "a_b")
    net.output(net.linear(h, "w_", 9), "value")
    net.output(net.linear(h, "W_", 2), "Value")
    return net


PROGRAMS = {
    "alike": alike,
    "dense": lambda: mlp(64, [32, 32], 10),
    "sparse": lambda: nnue(40, 8, 4),
    "recurrent": recurrent,
    "language": lambda: egg(16, 8, 2),
    "language with tables": lambda: egg(16, 12, 1, "table"),
} | {
    f"random {seed}": lambda seed=seed: seeded_program(seed)
    for seed in range(24)
    if kinds(seeded_program(seed)) <= export_numpy.EXPRESSIONS.keys()
}


class Rows:
    """T rows for each of R readers, which have a state each, and what the engine says of them."""

    def __init__(
        self, program: Program, T: int, seed: int = 0, *, R: int = 8, extreme: bool = False
    ) -> None:
        case = case_of(program, np.random.default_rng(seed), P=R, T=T, extreme=extreme)
        self.case, self.program, self.T = case, program, T
        random = np.random.default_rng(seed + 1)
        read = random.integers(1, program.vocabulary, case.tokens.shape)
        case.tokens[:] = read * (random.random(read.shape) > 0.2)
        self.net = Network(program, case.weights, "net")

    def expected(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Outputs [R, T, n] by name and the last states."""
        engine, case = engines.ENGINES["portable"](self.program), self.case
        prepared = engine.prepare(case.leaves)
        batch = case.batch._replace(state=zero_state(self.program, len(case.tokens)))
        after = batch.state
        found: dict[str, Any] = {}
        if self.program.outputs:
            found, after = engine.outputs(prepared, None, batch)
        if self.program.scored:
            logits, state = [], batch.state
            for t in range(self.T):
                row = batch.window(slice(t, t + 1))._replace(state=state)
                one, state = engine.logits(prepared, row)
                logits.append(np.array(one))
            found["logits"], after = np.stack(logits, axis=1), state
        names = [output.name for output in self.net.outputs()]
        return {name: np.array(found[name]) for name in names}, np.array(after)

    def row(self, t: int) -> dict[str, np.ndarray]:
        """What a row shows, by the names of arguments."""
        case, shown = self.case, {}
        if case.inputs is not None:
            shown["inputs"] = case.inputs[:, t]
        if case.features is not None:
            shown["features"] = case.features[:, t]
        if self.net.reads_tokens:
            shown["tokens"] = case.tokens[:, t]
        elif self.program.state_size:
            shown["begins"] = case.tokens[:, t] == 0
        return shown

    def stepped(self, step: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """`step(row, state)` -> (outputs, state), row after row."""
        state = np.zeros((len(self.case.tokens), self.program.state_size), np.int8)
        rows = []
        for t in range(self.T):
            outputs, state = step(self.row(t), state)
            rows.append(outputs)
        return {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}, state

    def check(self, found: tuple[dict[str, np.ndarray], np.ndarray]) -> None:
        """Every bit and every type."""
        (right, state), (outputs, after) = self.expected(), found
        assert outputs.keys() == right.keys()
        for name in right:
            assert outputs[name].dtype == right[name].dtype, name
            np.testing.assert_array_equal(outputs[name], right[name], name)
        np.testing.assert_array_equal(after, state)


def rows_of(name: str, T: int = 12, **options: Any) -> Rows:
    return Rows(PROGRAMS[name](), T, **options)


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numpy_step(rows: Rows, path: Path) -> Any:
    module = imported(export(rows.program, rows.case.weights, path))

    def step(shown: dict[str, np.ndarray], state: np.ndarray) -> Any:
        if rows.program.state_size:
            return module.step(**shown, state=state)
        return module.step(**shown), state

    return step


def onnx_step(rows: Rows, path: Path) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    export(rows.program, rows.case.weights, path)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def step(shown: dict[str, np.ndarray], state: np.ndarray) -> Any:
        given = {k: v.astype(np.int32) if k == "tokens" else v for k, v in shown.items()}
        if rows.program.state_size:
            given["state"] = state
        made = dict(zip(names, session.run(None, given), strict=True))
        return made, made.pop("state_after", state)

    return step


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("extreme", [False, True])
def test_the_python_module_equals_the_engine(name: str, extreme: bool, tmp_path: Path):
    rows = rows_of(name, extreme=extreme)
    rows.check(rows.stepped(numpy_step(rows, tmp_path / "net.py")))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("extreme", [False, True])
def test_the_onnx_model_equals_the_engine(name: str, extreme: bool, tmp_path: Path):
    rows = rows_of(name, extreme=extreme)
    rows.check(rows.stepped(onnx_step(rows, tmp_path / "net.onnx")))


def by_difference(program: Program) -> list[str]:
    """C that keeps the sums of `features` by the indices that came and went since the last row."""
    lines = ["if (t == 0) memset(before, -1, sizeof before), memset(kept, 0, sizeof kept);"]
    lines += [
        "const int16_t *sums[NET_LISTS];",
        "for (int l = 0; l < NET_LISTS; ++l) sums[l] = kept[l];",
    ]
    number = 0
    for op in (op for _, op in Network(program, {}, "net").operations() if op.kind == "features"):
        for at in range(op.numbers[2], op.numbers[2] + op.numbers[0] * op.numbers[1]):
            l = number + (at - op.numbers[2]) // op.numbers[1]
            lines += [
                f"if (before[{at}] != features[{at}]) {{",
                f"  if (before[{at}] >= 0) net_remove({l}, before[{at}], kept[{l}]);",
                f"  if (features[{at}] >= 0) net_add({l}, features[{at}], kept[{l}]);",
                "}",
            ]
        number += op.numbers[0]
    return [*lines, "memcpy(before, features, sizeof before);"]


def c_program(rows: Rows, kept: bool = False) -> str:
    """A main that reads rows from stdin and writes outputs to stdout, one reader after another.

    kept: the sums of features are changed by the difference to the row before.
    """
    net, program = rows.net, rows.program
    size = {out.name: out.size * (4 if out.wide else 1) for out in net.outputs()}
    reads, given = [], []
    for what, kind, count in (
        ("inputs", "int8_t", program.inputs),
        ("features", "int32_t", program.indices),
    ):
        if count:
            reads.append(f"{kind} {what}[{count}]; get({what}, sizeof {what});")
            given.append(what)
    if net.reads_tokens or program.state_size:
        what = "token" if net.reads_tokens else "begins"
        reads.append(f"int32_t {what}; get(&{what}, 4);")
        given.append(what)
    if program.state_size:
        given.append("state")
    for i, out in enumerate(net.outputs()):
        reads.append(f"{'int32_t' if out.wide else 'int8_t'} out{i}[{out.size}];")
        given.append(f"out{i}")
    writes = " ".join(f"put(out{i}, {n});" for i, n in enumerate(size.values()))
    if kept:
        reads = [*reads, *by_difference(program)]
        given[given.index("features")] = "sums"
    begin = f"int8_t state[{program.state_size}] = {{0}};" if program.state_size else ""
    begin += (
        f"int32_t before[{program.indices}]; int16_t kept[NET_LISTS][NET_SUMS];" if kept else ""
    )
    end = "put(state, sizeof state);" if program.state_size else ""
    return f"""#include <stdio.h>
#include <stdlib.h>
#include "net.h"
static void get(void *to, size_t n) {{ if (fread(to, 1, n, stdin) != n) exit(1); }}
static void put(const void *from, size_t n) {{ fwrite(from, 1, n, stdout); }}
int main(void) {{
  for (int r = 0; r < {len(rows.case.tokens)}; ++r) {{
    {begin}
    for (int t = 0; t < {rows.T}; ++t) {{
      {chr(10).join(reads)}
      net_step{"_sums" * kept}({", ".join(given)});
      {writes}
    }}
    {end}
  }}
  return 0;
}}
"""


def run_c(
    rows: Rows, folder: Path, *flags: str, kept: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    export(rows.program, rows.case.weights, folder / "net.h")
    (folder / "main.c").write_text(c_program(rows, kept))
    assert CC is not None
    strict = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([CC, *strict, *flags, "main.c", "-o", "main"], cwd=folder, check=True)
    shown = []
    for r in range(len(rows.case.tokens)):
        for t in range(rows.T):
            for name, array in rows.row(t).items():
                flag = name in ("tokens", "begins", "features")
                shown.append((array[r].astype(np.int32) if flag else array[r]).tobytes())
    done = subprocess.run(
        [folder / "main"], input=b"".join(shown), stdout=subprocess.PIPE, check=True
    )
    at, data = 0, done.stdout
    outputs: dict[str, list[Any]] = {out.name: [] for out in rows.net.outputs()}
    states = []
    for _ in range(len(rows.case.tokens)):
        for _ in range(rows.T):
            for out in rows.net.outputs():
                dtype = np.dtype(np.int32 if out.wide else np.int8)
                outputs[out.name].append(np.frombuffer(data, dtype, out.size, at))
                at += out.size * dtype.itemsize
        states.append(np.frombuffer(data, np.int8, rows.program.state_size, at))
        at += rows.program.state_size
    assert at == len(data)
    lead = (len(rows.case.tokens), rows.T, -1)
    return {k: np.array(v).reshape(lead) for k, v in outputs.items()}, np.array(states)


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_c_header_equals_the_engine(name: str, tmp_path: Path):
    rows = rows_of(name, extreme=name.endswith("1"))
    rows.check(run_c(rows, tmp_path))


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
def test_two_headers_of_one_name_are_an_error_and_one_twice_is_none(tmp_path: Path):
    case = rows_of("recurrent").case
    one, other = case.weights, {**case.weights}
    name = min(other)
    other[name] = -other[name]
    export(case.program, one, tmp_path / "a-net.h")
    export(case.program, other, tmp_path / "a_net.h")
    assert CC is not None
    for first, code in (("a-net.h", 0), ("a_net.h", 1)):
        (tmp_path / "main.c").write_text(
            f'#include "{first}"\n#include "a-net.h"\nint main(void) {{ return 0; }}\n'
        )
        command = [CC, "-std=c99", "-fsyntax-only", "main.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
    assert b"a_net" in done.stderr


def test_files_of_runs_are_not_replaced(tmp_path: Path):
    rows, path = rows_of("dense"), tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"of a run")
    with pytest.raises(InputError, match="is a file of a run: give another name"):
        export(rows.program, rows.case.weights, path)
    assert path.read_bytes() == b"of a run"


def test_names_that_would_take_anothers_place_are_refused(tmp_path: Path):
    case = rows_of("recurrent").case
    for name, whose in (("base64", "Python's own"), ("math", "Python's own"), ("numpy", "NumPy's")):
        with pytest.raises(InputError, match=f"imported in {whose} place: give another name"):
            export(case.program, case.weights, tmp_path / f"{name}.py")
    net = Program(vocabulary=7, width=8)
    net.stage()
    x = net.embed("e")
    net.output(x, "logits")
    net.score(x, "head")
    for ending in (".py", ".h", ".onnx", ".safetensors"):
        with pytest.raises(InputError, match="an output is named 'logits', as the score's are"):
            export(net, initial_weights(net, 0), tmp_path / f"net{ending}")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("begins", [[0, 1, 1], np.array([0, 1, 1]), [False, True, True]])
def test_begins_may_be_numbers(begins: Any, tmp_path: Path):
    rows = rows_of("recurrent")
    step, row = numpy_step(rows, tmp_path / "net.py"), rows.row(0)
    row = {name: array[:3] for name, array in row.items()}
    state = rows.case.state[:3]
    want, after = step(row | {"begins": np.array([False, True, True])}, state)
    found, also = step(row | {"begins": begins}, state)
    np.testing.assert_array_equal(after, also)
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in want.items()}


@pytest.mark.parametrize(
    ("name", "argument", "value", "range_"),
    [
        ("dense", "inputs", 128, "-128 to 127"),
        ("dense", "inputs", 0.5, "-128 to 127"),
        ("sparse", "features", -2, "-1 to "),
        ("language", "tokens", -1, "0 to "),
    ],
)
def test_python_refuses_what_the_engine_does_not_take(
    name: str, argument: str, value: float, range_: str, tmp_path: Path
):
    """An index below 0 would count rows from the end."""
    rows = rows_of(name)
    step, row = numpy_step(rows, tmp_path / "net.py"), rows.row(0)
    step(row, rows.case.state)
    wrong = row[argument].astype(type(value))
    wrong[-1:] = value
    with pytest.raises(ValueError, match=f"^{argument}: integers from {range_}.* are needed"):
        step(row | {argument: wrong}, rows.case.state)


def shows_features(name: str) -> bool:
    """Whether a result of the program needs features."""
    net = Network(PROGRAMS[name](), {}, "net")
    return any(op.kind == "features" for _, op in net.operations())


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", [*filter(shows_features, PROGRAMS)])
def test_sums_that_are_kept_equal_those_of_all_rows(name: str, tmp_path: Path):
    rows = rows_of(name, T=40, extreme=name.endswith("1"))
    assert np.diff(rows.case.features, axis=1).any()
    flags = ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    rows.check(run_c(rows, tmp_path, *flags, kept=True))


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
def test_the_c_header_has_no_undefined_behaviour(tmp_path: Path):
    rows = rows_of("recurrent", extreme=True)
    rows.check(run_c(rows, tmp_path, "-fsanitize=undefined,address", "-fno-sanitize-recover=all"))


@pytest.mark.parametrize("name", ["dense", "sparse", "recurrent", "language", "random 3"])
def test_ten_thousand_rows_are_equal(name: str, tmp_path: Path):
    rows = rows_of(name, T=101, R=100, seed=5)
    right = rows.expected()
    for found in (
        rows.stepped(numpy_step(rows, tmp_path / "net.py")),
        rows.stepped(onnx_step(rows, tmp_path / "net.onnx")),
        *([run_c(rows, tmp_path)] if CC else []),
    ):
        for output, values in right[0].items():
            np.testing.assert_array_equal(found[0][output], values)
        np.testing.assert_array_equal(found[1], right[1])


def page_programs() -> list[str]:
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
    return re.findall(r"^```c\n(.*?)^```", page, re.M | re.S)


@pytest.mark.skipif(CC is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", ["dense", "language"])
def test_the_programs_of_the_page_compile_and_run(name: str, tmp_path: Path):
    net = mlp(4, [16], 3) if name == "dense" else egg(16, 8, 2)
    weights = {k: np.asarray(w) for k, w in initial_weights(net, 1).items()}
    export(net, weights, tmp_path / "net.h")
    (program,) = (p for p in page_programs() if ("NET_STATE" in p) == (name == "language"))
    (tmp_path / "main.c").write_text(program)
    assert CC is not None
    flags = ["-std=c99", "-O3", "-Wall", "-Werror", "-fsanitize=undefined"]
    subprocess.run([CC, *flags, "main.c", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], stdout=subprocess.PIPE, text=True, check=True)
    found = [int(word) for word in done.stdout.split()]
    assert len(found) == (1 if name == "dense" else 40)
    assert 0 <= min(found) <= max(found) < (3 if name == "dense" else 16)
    if name == "dense":
        row = np.array([[12, -3, 55, 8]], np.int8)
        module = imported(export(net, weights, tmp_path / "net.py"))
        assert found == [module.step(row)["output"].argmax()]


def test_safetensors_hold_leaves_and_declaration(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors")
    rows = rows_of("recurrent")
    path = export(rows.program, rows.case.weights, tmp_path / "net.safetensors")
    with safetensors.safe_open(path, "numpy") as file:
        facts = file.metadata()
        leaves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    net = program_in(facts["declaration"], int(facts["score_bits"]))
    assert net.digest() == rows.program.digest() == facts["network"]
    assert leaves.keys() == rows.case.weights.keys()
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(leaf, rows.case.weights[name])


def test_the_comparison_notices_what_is_broken(tmp_path: Path):
    """A module with another rounding differs."""
    rows = rows_of("dense")
    path = export(rows.program, rows.case.weights, tmp_path / "net.py")
    text = path.read_text()
    assert " // 128)" in text
    path.write_text(text.replace(" // 128)", " / 128).astype(np.int64)"))
    module = imported(path)
    with pytest.raises(AssertionError):
        rows.check(rows.stepped(lambda shown, state: (module.step(**shown), state)))


def test_a_model_exports_itself_and_the_command_a_run(tmp_path: Path, capsys: Any):
    es = Trainer(mlp(4, [8], 2), pop=4, engine="portable", table_bits=16)
    es.save(tmp_path / "run.safetensors")
    es.model.export(tmp_path / "one.py")
    words = ["export", str(tmp_path / "run.safetensors"), "--to", str(tmp_path / "two.py")]
    assert commands.main(words) == 0
    assert "wrote" in capsys.readouterr().out
    one, two = ((tmp_path / f"{n}.py").read_text() for n in ("one", "two"))
    assert one.replace("Network one", "Network two") == two
    shown = np.random.default_rng(0).integers(-99, 99, (50, 4)).astype(np.int8)
    [found] = imported(tmp_path / "two.py").step(shown).values()
    np.testing.assert_array_equal(found, es.model(shown))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "--to", "net.h"], "nowhere"),
        (["nowhere"], "--to FILE"),
        ([], "--to FILE"),
    ],
)
def test_bad_words_get_a_sentence(words: list[str], sentence: str, capsys: Any):
    assert commands.main(["export", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_other_endings_and_missing_packages_get_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = rows_of("dense")
    for path in ("net.txt", "net", 3):
        with pytest.raises(InputError, match=r"path|ending"):
            export(rows.program, rows.case.weights, path)
    with pytest.raises(InputError, match="nowhere"):
        export(rows.program, rows.case.weights, tmp_path / "nowhere" / "net.h")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match="pip install onnx"):
        export(rows.program, rows.case.weights, tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
    assert FORMATS.keys() == {".py", ".h", ".onnx", ".safetensors"}
    assert json.dumps(rows.program.declaration())
    assert Batch(mx.zeros((1, 1), mx.int32)).size == (1, 1)


@pytest.mark.parametrize("name", ["inputs", "v0", "number_0"])
def test_names_that_a_format_needs_get_a_sentence(tmp_path: Path, name: str):
    net = Program()
    net.output(net.relu(net.linear(net.input(3), "__metadata__", 2)), name)
    weights = {"__metadata__": np.zeros((2, 3), np.int8)}
    for ending in (".onnx", ".safetensors"):
        with pytest.raises(InputError, match="another format"):
            export(net, weights, tmp_path / f"net{ending}")
    assert export(net, weights, tmp_path / "net.py").exists()


@pytest.mark.parametrize("ending", [".py", ".h", ".onnx"])
def test_an_operation_without_a_form_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
):
    monkeypatch.delitem(export_numpy.EXPRESSIONS, "linear")
    net = recurrent()
    weights = {leaf.name: np.zeros(leaf.shape, np.int8) for leaf in net.leaves}
    with pytest.raises(InputError, match=r"'linear' has no form in .* export to \.safetensors"):
        export(net, weights, tmp_path / f"net{ending}")
    assert export(net, weights, tmp_path / "net.safetensors").exists()
