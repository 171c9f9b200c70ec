"""Command lines of benchmarks: one sentence before any work, and 130 without figures; none runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import Command

from eggroll.training.loop import RunResult

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import checks

FOLDER = Path(checks.__file__).parent
WITH_FILES = ("estimators", "learning", "worlds", "host", "float_kernels", "kernels")
SMALL = ("--data", "count", "--pop", "32", "--width", "16", "--seq-len", "8")


def load(name: str) -> ModuleType:
    """A benchmark by its path, as one has the name of a package."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for types
    spec.loader.exec_module(module)
    return module


def refused(call: Command, name: str, *words: str) -> str:
    """The sentence that a benchmark ends with."""
    ended = call(*words, main=load(name).main)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    return ended.err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("estimators --pop 3", "--pop is 3: an even number"),
        ("estimators --seq-len 0", "--seq-len is 0: "),
        ("estimators --repeats 0", "--repeats is 0: "),
        ("estimators --networks D", "--networks has 'D': 'D 64, L 1' or "),
        ("learning --pops 0", "--pops has 0: even numbers from 2 "),
        ("learning --pops 3", "--pops has 3: even numbers from 2 "),
        ("learning --threads -1", "--threads has -1: numbers from 0 to 1024 "),
        ("learning --repeats 0", "--repeats is 0: "),
        ("learning --estimators", "--estimators is empty: give one or more of 'local' or "),
        ("worlds --rounds 0", "--rounds is 0: "),
        ("host --pairs 0", "--pairs is 0: "),
        ("host --preset foo", "'foo' is given, but one of seed, "),
        ("float_kernels --rounds 0", "--rounds is 0: "),
        ("float_kernels --isa foo", "--isa is 'foo': one of "),
        ("chain --pop 3", "--pop is 3: an even number"),
        ("chain --updates 0", "--updates is 0: "),
        ("chain --updates=many", "'many' is given, but a whole number is needed"),
        ("chain --foo", "'--foo' is no option of eggroll.train"),
        ("chain --resume=runs/mine", "--resume is not to be given, as the benchmark trains"),
        ("chain --steps 5", "--steps is not to be given"),
        ("replay --out runs/mine", "--out is not to be given"),
        ("replay --preset foo", "'--preset' is no option of eggroll.train"),
        ("replay --pop 3", "--pop is 3: an even number"),
        ("replay --recipe feedback", "--estimator is feedback, whose runs are not replayed"),
        ("ranks foo", "'foo' is given: one of measure, model and pair is needed"),
        ("adamw_vs_torch --foo", "'--foo' is no option of benchmarks/adamw_vs_torch.py"),
    ],
)
def test_bad_input(call: Command, line: str, says: str):
    assert says in refused(call, *line.split())


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_place_for_figures_is_looked_at_first(call: Command, name: str, tmp_path: Path):
    for place in (tmp_path / "missing" / "out.json", tmp_path):
        assert f"--json {str(place)!r} is no place for a file" in refused(
            call, name, "--json", str(place)
        )


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("adamw_vs_torch", "torch", "experiments"), ("labels", "torch", "experiments"),
     ("ask_tell", "jax", "peers"), ("export", "onnxruntime", "dev")],
)  # fmt: skip
def test_a_missing_package_is_named_before_any_work(
    call: Command, name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    main, given = load(name).main, [[]] if name == "adamw_vs_torch" else []
    ended = call(main=lambda words: checks.cli.run(lambda: main(*given)))
    said = f"error: {package} is missing: pip install '.[{extra}]' brings it.\n"
    assert (ended.code, ended.out, ended.err) == (2, "", said)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("labels", {"seeds": 0}, "--seeds is 0"),
        ("labels", {"seconds": 0.0}, "--seconds is 0.0"),
        ("ask_tell", {"rounds": 0}, "--rounds is 0"),
        ("export", {"repeats": 0}, "--repeats is 0"),
    ],
)
def test_bad_numbers_of_scripts(name: str, given: dict[str, Any], says: str):
    with pytest.raises(checks.InputError, match=says):
        load(name).main(**given)


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("line", "work"),
    [
        ("estimators", "verify"), ("learning", "verify"), ("host", "verify"),
        ("worlds", "native.build"), ("float_kernels", "products"), ("replay", "output_of"),
        ("ranks pair", "output_of"), ("chain", "loop.train"), ("chain", "verify.verify"),
    ],
)  # fmt: skip
def test_an_interrupt_ends_a_benchmark(
    call: Command, line: str, work: str, monkeypatch: pytest.MonkeyPatch
):
    name, *words = line.split()
    module = load(name)
    owner, _, function = work.rpartition(".")
    monkeypatch.setattr(getattr(module, owner) if owner else module, function, interrupt)
    if name == "chain":
        words += ["--updates", "1", *SMALL]
    ended = call(*words, main=module.main)
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "Interrupted.")
    assert " ms, chain " not in ended.out


def test_a_chain_of_fewer_updates_is_not_timed(call: Command, monkeypatch: pytest.MonkeyPatch):
    """Training that is asked to stop returns."""
    chain = load("chain")
    result = RunResult(None, 1, "", None, "Interrupted after update 1 of 100")
    monkeypatch.setattr(chain.loop, "train", lambda options: result)
    ended = call(main=chain.main)
    assert (ended.code, ended.out, ended.err) == (130, "", "Interrupted.\n")


def test_a_chain_is_timed(call: Command, no_curves: None):
    ended = call(*SMALL, "--updates", "2", main=load("chain").main)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1].endswith(" s, start included, 2 updates")


@pytest.mark.parametrize(
    ("name", "says"),
    [("chain", "--updates N"), ("replay", "options of eggroll.train"), ("ranks", "ranks.py pair")],
)
def test_help_is_of_the_benchmark(call: Command, name: str, says: str):
    ended = call("--help", main=load(name).main)
    assert (ended.code, ended.err) == (0, "")
    assert says in ended.out


def test_a_program_is_refused_in_its_words():
    def run(line: str) -> str:
        return checks.output_of([sys.executable, "-c", f"import sys; {line}"])

    assert run("print('done')") == "done\n"
    with pytest.raises(checks.InputError, match=r"^--pop is 3\.$"):
        run("print('error: --pop is 3.', file=sys.stderr); sys.exit(2)")
    with pytest.raises(checks.subprocess.CalledProcessError):
        run("sys.exit(1)")
