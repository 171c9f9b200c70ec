"""A trial of an engine: small networks in a process of its own, against the cpu engine.

The engine is named as "module:Class", so that engines can ask for their trial. A trial is passed or
not; it says nothing of shapes that it does not try, and a real run compares its own. Letters: P
members, T tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib import import_module, metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from nax_check.product import death
from numpy.typing import NDArray

from eggroll.engines.base import Engine, arrays_of_members
from eggroll.engines.cpu import CpuEngine
from eggroll.engines.gpu.dialect import IN_TREE
from eggroll.engines.portable.engine import PortableEngine
from eggroll.errors import InputError, object_in
from eggroll.files import cache_folder, check_own, write_whole
from eggroll.networks import egg
from eggroll.spec.backward import MOST, Backward
from eggroll.spec.credit import Crediting, CreditNoise, crediting, draw_signs
from eggroll.spec.fixed_point import LIMIT
from eggroll.spec.losses import LOSSES
from eggroll.spec.noise import Noise, Slices
from eggroll.spec.program import Batch, Program

SHIFT, TABLE_BITS, T = 6, 18, 2  # of the noise, and tokens
FAR_PAIR = (1 << 31) - 7  # of the first of some pairs: the next ones have numbers of 32 bits
# Threadgroups of a launch: matrix units have been seen to go wrong only where there are several,
# and the votes' product then has more terms than it stages at a time.
GROUPS = 5
FINE_MOST = (127 << 16) + 32767  # of a fine copy
ESTIMATORS = {"token-votes": False, "token-credit": True}  # whether the noise is on nodes
# Of the outputs of `rows_network`: each of int8 and of sums.
OUTPUT_LOSSES = "softmax", "squared", "squared", "softmax", "sigmoid", "sigmoid"
MAX_VERDICTS = 32  # on disk, the last ones
SWITCH = "EGGROLL_TRIAL"  # 1: verdicts on disk do not count
LANGUAGES = ("gpu", "metal", "cuda")  # folders of kernel files
# float32 products as they are, not in TF32, as the reference may be MLX on the same GPU.
EXACT = {"MLX_ENABLE_TF32": "0"}
PLAIN = {"PYTHON_COLORS": "0"}  # no escape sequences in tracebacks, even under FORCE_COLOR
MAX_LINES, MAX_WIDTH = 3, 240  # of an exception's message, in a sentence
TRACEBACK = "Traceback (most recent call last):"
FAULT = "Fatal Python error:"  # faulthandler's; what follows says where, at length
FRAME = re.compile(r'  File "(?:.*/)?(.+)", line (\d+), in (.+)')

NamedArray = tuple[str, NDArray[np.generic]]


def trial_error(
    engine: str,
    seconds: int,
    *,
    facts: Mapping[str, str],
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The reason why the trial of "module:Class" failed in its own process; empty if it passed.

    facts: of the device and its system; where the trial passed with the same before, it is not
    repeated. options: keyword arguments of the class; environment: set for the process besides.
    """
    key = {"engine": engine, **facts, **{k: str(v) for k, v in (options or {}).items()}}
    if passed_before(key):
        return ""
    if sys.stderr and sys.stderr.isatty():  # a program with windows may have none
        name = engine.partition(":")[0].rpartition(".")[2]
        print(f"trying the {name} engine on this GPU, for at most {seconds} s; if it passes, this "
              "is not repeated", file=sys.stderr, flush=True)  # fmt: skip
    why = run_in_child(trial_code(engine, options), seconds, environment or {}).why
    if not why:
        keep_verdict(key)
    return why


def trial_code(engine: str, options: Mapping[str, Any] | None = None) -> str:
    """Python code that tries "module:Class" and ends with a code other than 0 if that fails."""
    return f"from eggroll.engines.trial import main; main({engine!r}, {dict(options or {})!r})"


def main(name: str, options: Mapping[str, Any]) -> None:
    """Ends the process with a sentence unless the trial of "module:Class" passes.

    Members share threadgroups as in runs: as many as one may hold, in several of them, and some
    that are left over.
    """
    module, _, attribute = name.partition(":")
    kind, wrong = getattr(import_module(module), attribute), []
    group = max(kind.group_sizes)
    tried = {
        title: kind(program, members=group, **options)
        for title, program in trial_networks().items()
    }
    members = GROUPS * group + 2
    with contextlib.redirect_stderr(io.StringIO()):
        kind.ahead([partial(list, trial_results(engine, members)) for engine in tried.values()])
    for title, engine in tried.items():
        print(f"trying {title}", file=sys.stderr, flush=True)
        wrong += [f"{title}, {each}" for each in differences(engine, members)]
    print("\n".join(wrong))
    if wrong:
        sys.exit(
            f"the kernels give other integers than engine {reference_engine().name}: {wrong[0]}"
        )


def differences(engine: Engine, members: int) -> list[str]:
    """Every result of P members that is not the reference's, by name, with its first number."""
    reference = reference_engine()(engine.program)
    rules = bool(engine.rules and reference.rules)
    tried = (trial_results(each, members, rules) for each in (engine, reference))
    pairs = zip(*tried, strict=True)
    return [f"{name}: {text}" for (name, a), (_, b) in pairs if (text := difference(a, b))]


def difference(array: NDArray[np.generic], expected: NDArray[np.generic]) -> str:
    """The way in which an array is not the expected one; empty if it is."""
    if array.shape != expected.shape or array.dtype != expected.dtype:
        return f"{array.dtype} {list(array.shape)} for {expected.dtype} {list(expected.shape)}"
    wrong = np.argwhere(array != expected)
    if not len(wrong):
        return ""
    at = tuple(wrong[0])
    place = f"{array[at]} for {expected[at]} at {[int(i) for i in at]}"
    return f"{len(wrong)} of {expected.size} differ, the first is {place}"


def reference_engine() -> type[Engine]:
    """The cpu engine, or plain MLX where its extension is missing."""
    return PortableEngine if CpuEngine.unavailable_because() else CpuEngine


def trial_networks() -> dict[str, Program]:
    """Networks: one so wide that registers leave threadgroup memory, one of every operation.

    The latter again without its score, as errors of outputs are carried back there.
    """
    return {"egg": egg(40, 256, 1), "rows": rows_network(), "outputs": rows_network(scored=False)}


def rows_network(*, scored: bool = True) -> Program:
    """Every operation but EGG's embedding, on sizes that fill no tile, with outputs and a score."""
    net = Program(29, 40)
    x, s = net.stage(state=True)
    shown = net.features("rows", 61, 20, active=5, lists=2, shift=1)
    joined = net.concat(shown, net.input(13))
    hidden = net.relu(net.bias(net.linear(joined, "hidden", 40), "bias"))
    forgotten = net.forget(hidden, s)
    sums = net.add_bias(net.linear(hidden, "from_x", 40), net.linear(forgotten, "from_s", 40), "b")
    net.mix(net.lookup(sums, "sigmoid"), hidden, s, out=s)
    net.add(net.norm(hidden, "norm"), s, out=x)
    net.output(net.linear(x, "turn", 9), "turn")
    net.sums(x, "value", 3)
    if scored:
        net.score(x, "head")
    else:
        for narrow, wide in (("level", "rank"), ("odds", "chance")):
            net.output(net.linear(x, narrow, 5), narrow)
            net.sums(x, wide, 7)
    net.check()
    return net


class TrialCase:
    """The arrays that P members of a program read over T tokens, and their noise: always the same.

    Attributes: weights, batch, fitness int8 [N] in {-1, 0, 1}, words uint32 [P, T] to round credit
    by, matrices, int8 [O, K] by leaf, for `back`, and wanted, targets of outputs as Batch has them.
    """

    def __init__(self, program: Program, members: int) -> None:
        words = np.random.Generator(np.random.PCG64(1))
        V, shape = program.vocabulary, (members, T)
        self.weights = {
            leaf.name: mx.array(words.integers(-40, 41, leaf.shape, np.int8))
            for leaf in program.leaves
        }
        tokens, targets = (mx.array(words.integers(0, V, shape, np.int32)) for _ in "ab")
        state = mx.array(words.integers(-127, 128, (members, program.state_size), np.int8))
        inputs = words.integers(-128, 128, (*shape, program.inputs), np.int8)
        features = np.full((*shape, program.indices), -1, np.int32)
        for op in program.sparse_ops:
            lists, active, first, _ = op.numbers
            size, count = lists * active, program.leaves[op.leaf].shape[0]
            features[..., first : first + size] = words.integers(-1, count, (*shape, size))
        self.batch = Batch(
            tokens, targets, state,
            mx.array(inputs) if program.inputs else None,
            mx.array(features) if program.indices else None,
        )  # fmt: skip
        self.fitness = mx.array((np.arange(members // 2) % 3 - 1).astype(np.int8))
        self.words = mx.array(words.integers(0, 1 << 32, shape, np.uint32))
        matrices = [leaf for leaf in program.leaves if len(leaf.shape) == 2]
        self.matrices = {
            leaf.name: mx.array(words.integers(-127, 128, leaf.shape, np.int8)) for leaf in matrices
        }
        if not program.scored:
            wanted = []
            for name, out in zip(OUTPUT_LOSSES, program.outputs, strict=False):
                columns = out.size if LOSSES[name].by_value else 1
                past = min(LOSSES[name].most or out.size - 1, LIMIT) + 1
                wanted.append(words.integers(-1, past, (*shape, columns), np.int32))
            self.batch = self.batch._replace(wanted=mx.array(np.concatenate(wanted, axis=-1)))

    def before_rules(self) -> dict[str, tuple[Any, ...]]:
        """The arguments of engines' rules, by name: small votes, the largest ones, and none."""
        words = np.random.Generator(np.random.PCG64(2))

        def drawn(shape: tuple[int, ...], most: int) -> NDArray[np.int32]:
            size = words.integers(0, most.bit_length(), shape)  # of numbers of all lengths
            return (words.integers(-most, most + 1, shape) >> size).astype(np.int32)

        adam, master, whitened = list[Any](), list[Any](), list[Any]()
        for leaf in self.weights.values():
            arrays = [drawn(leaf.shape, most) for most in (1 << 28, FINE_MOST, 1 << 30, 1 << 30)]
            arrays[0][..., ::5] = 0
            votes, fine, mean, size = map(mx.array, (*arrays[:3], abs(arrays[3])))
            feedback = matrices = None
            if leaf.ndim == 2:
                feedback = mx.array(drawn(leaf.shape, FINE_MOST))
                count = -(-leaf.shape[1] // 64)
                square = drawn((count, *[-(-leaf.shape[1] // count)] * 2), 1 << 18)
                matrices = mx.array(square + square.swapaxes(1, 2))
            adam.append((votes, leaf, fine, mean, size, feedback, 9999 * (leaf.ndim == 2)))
            master.append((votes, leaf, fine, 1 << 33, 9999 * (leaf.ndim == 2)))
            whitened.append((votes, leaf, fine, feedback, matrices, 1 << 24, 300))
        return {"adam": (adam, 70_000), "master": (master,), "whitened": (whitened, True)}

    def shared_noise(self, program: Program, rank: int) -> Noise:
        """The noise that its pairs have slices of."""
        shapes = [leaf.shape for leaf in program.leaves]
        return Noise(shapes, seed=0, rank=rank, shift=SHIFT, table_bits=TABLE_BITS)

    def noise(self, program: Program, rank: int) -> Slices:
        """The slices of all pairs."""
        return self.shared_noise(program, rank).slices(0, 0, self.fitness.size)

    def back(self, program: Program) -> Backward:
        """Scales from fine to coarse, and a matrix wherever one can send credit on."""
        ops = [op for stage in program.stages for op in stage.ops]
        kinds = "linear", "score", "sums"
        names = [program.leaves[op.leaf].name for op in ops if op.kind in kinds]
        scales = tuple(i % (MOST + 1) for i in range(len(program.leaves)))
        losses = OUTPUT_LOSSES[: 0 if program.scored else len(program.outputs)]
        return Backward(scales, {name: self.matrices[name] for name in names}, losses)

    def credited(self, program: Program, nodes: bool) -> tuple[CreditNoise, Crediting]:
        """The last arguments of `Engine.credit`."""
        plan = crediting(program, nodes=nodes, sigma_shift=2, discount=12, seq_len=T)
        pairs = self.fitness.size
        noise = draw_signs(plan, seed=0, step=0, first_pair=0, pairs=pairs, seq_len=T)
        return noise, plan


def trial_results(engine: Engine, members: int, rules: bool = True) -> Iterator[NamedArray]:
    """All that the engine computes for P members, by name; says on stderr what comes next.

    rules: whether updates are among it.
    """
    program = engine.program
    case = TrialCase(program, members)

    def named(title: str, arrays: dict[str, mx.array]) -> Iterator[NamedArray]:
        for name, array in arrays.items():
            yield f"{title}, {name}" if name else title, np.array(array)

    def begin(title: str) -> str:
        print(f"{engine.name}: {title}", file=sys.stderr, flush=True)
        return title

    begin("weights in order")
    prepared, slices = engine.prepare(case.weights), case.noise(program, 1)
    title = begin("where slices begin")
    starts = engine.starts(case.shared_noise(program, 1), 5, FAR_PAIR, case.fitness.size)
    yield from named(title, {"": starts})
    for rule, given in case.before_rules().items() if rules else ():
        title = begin(f"rule {rule}")
        after, moved = getattr(engine, rule)(*given)
        for name, of in zip(case.weights, after, strict=True):
            yield from named(f"{title}, {name}", {f"result {i}": a for i, a in enumerate(of)})
        yield title, np.array(int(moved))
    title = begin("errors carried back")
    learnt = engine.learn(prepared, case.batch, case.words, case.back(program))
    yield from named(title, {**arrays_of_members(learnt), "sizes": learnt.sizes, **learnt.votes})
    if not program.scored:  # the rest is the same with a score
        return
    for rank in (1, 3) if program.outputs else (1,):
        title = begin(f"scores of rank {rank}")
        scores, state = engine.evaluate(prepared, case.noise(program, rank), case.batch)
        yield from named(title, {"": scores, "state": state})
    title = begin("exact likelihoods")
    exact = engine.likelihoods(prepared, case.batch)
    yield from named(title, dict(zip(("totals", "hits", "state"), exact, strict=True)))
    for clt in (True, False):
        title = begin("votes by the noise's " + ("values" if clt else "signs"))
        yield from named(title, engine.votes(case.fitness, slices, clt))
    for estimator, nodes in ESTIMATORS.items():
        credited = case.credited(program, nodes)
        title = begin(estimator)
        scores, state, votes = engine.credit(prepared, slices, case.batch, *credited)
        yield from named(title, {"scores": scores, "state": state, **votes})
    if program.outputs:
        for title, noise in (("outputs", ()), ("outputs of token-credit", credited)):
            begin(title)
            outputs, state = engine.outputs(prepared, slices, case.batch, *noise)
            yield from named(title, {**outputs, "state": state})


# The process of a trial, and one sentence for why it failed.


class ChildEnd(NamedTuple):
    """The end of a child process."""

    why: str  # it failed; empty if it did not
    text: str  # its stdout, then its stderr


def run_in_child(code: str, seconds: float, environment: Mapping[str, str]) -> ChildEnd:
    """Runs Python code in a process of its own, as a kernel can end its process, or never end."""
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    env = {**os.environ, **EXACT, **PLAIN}
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
            env={**env, **environment},
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        output, errors = _text(late.stdout), _text(late.stderr)
        return ChildEnd(why_late(errors, seconds), output + errors)
    except OSError as error:
        return ChildEnd(str(error), "")
    output, errors, end = _text(process.stdout), _text(process.stderr), process.returncode
    return ChildEnd(why_ended(errors, end) if end else "", output + errors)


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def why_ended(stderr: str, code: int) -> str:
    """The reason why a process ended with a code other than 0, out of its stderr."""
    lines = stderr.partition(FAULT)[0].splitlines()
    heads = [i for i, line in enumerate(lines) if line == TRACEBACK]
    after = range(heads[-1] + 1 if heads else len(lines), len(lines))
    begin = next((i for i in after if lines[i][:1] not in ("", " ")), None)
    if begin is not None:  # the exception that nobody caught
        text = sentence("\n".join(lines[begin:]))
        if re.fullmatch(r"\w+", text):  # its name is all it says
            text += _place(lines[heads[-1] : begin])
    else:  # warnings may come before the line that counts
        errors = [line for line in lines if "error:" in line]
        text = sentence("\n".join(errors or _last(lines)))
    if code < 0:
        return death(code) + (f": {text}" if text else "")
    return text or death(code)


def why_late(stderr: str, seconds: float) -> str:
    """The reason why a process was ended that had this on its stderr when its time was up."""
    last = _last(stderr.splitlines())
    return f"no answer in {seconds:g} seconds" + "".join(f"; last it said: {_cut(x)}" for x in last)


def _place(traceback: list[str]) -> str:
    frames = [match for line in traceback if (match := FRAME.match(line))]
    return " in {2} ({0}, line {1})".format(*frames[-1].groups()) if frames else ""


def _last(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()][-1:]


def sentence(message: str) -> str:
    """The lines of an exception's message that say why, cut to a length that can be read.

    MLX's RuntimeError has several: a kernel does not build, no pipeline takes it, or the GPU ended
    a launch. A compiler's errors if there are any, without the code and the marks beneath; else the
    first lines.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = list(dict.fromkeys(line for line in lines if "error:" in line))
    if not errors:
        return " ".join(map(_cut, lines[:MAX_LINES]))
    more = len(errors) - MAX_LINES
    return "; ".join(map(_cut, errors[:MAX_LINES])) + (f"; and {more} more" if more > 0 else "")


def _cut(line: str) -> str:
    return line if len(line) <= MAX_WIDTH else f"{line[: MAX_WIDTH - 4]} ..."


# Verdicts on disk, so that no run waits for the same trial again.


def passed_before(facts: Mapping[str, str]) -> bool:
    """True if a trial with these facts passed and nobody asks for another.

    Verdicts hold for one device, system, MLX, Python and text of this package. One that failed is
    not kept, so that every process tries again.
    """
    return os.environ.get(SWITCH) != "1" and verdict_key(facts) in read_verdicts()


def keep_verdict(facts: Mapping[str, str]) -> None:
    """Keeps that a trial passed. Where no file can be written, nothing is kept."""
    verdicts = read_verdicts()
    verdicts[verdict_key(facts)] = dict(facts)
    last = dict(list(verdicts.items())[-MAX_VERDICTS:])
    with contextlib.suppress(OSError, InputError):
        verdicts_path().parent.mkdir(parents=True, exist_ok=True)
        write_whole(verdicts_path(), json.dumps(last, indent=1).encode() + b"\n")


def forget_verdicts() -> None:
    """Lets every engine be tried again."""
    with contextlib.suppress(OSError, InputError):
        verdicts_path().unlink()


def verdicts_path() -> Path:
    """The file with all verdicts."""
    return cache_folder() / "trials.json"


def read_verdicts() -> dict[str, dict[str, str]]:
    """Key -> facts of every verdict; none if the file is missing or unreadable."""
    try:
        check_own(verdicts_path())
        return object_in(verdicts_path().read_bytes())
    except (OSError, InputError, ValueError):
        return {}


def verdict_key(facts: Mapping[str, str]) -> str:
    """A hash of the facts, of the system and of all that kernels are written from."""
    name, _, *system = os.uname()
    versions = platform.python_version(), metadata.version("mlx")
    parts = [name, *system, *versions, source_hash(), dict(facts)]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def source_hash() -> str:
    """A hash of this package's Python files and of the kernel files, installed or in-tree."""
    digest = hashlib.sha256()
    for name, content in source_files():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def source_files() -> Iterator[tuple[str, bytes]]:
    """Name and content of each: Python files of the package and kernel files."""
    package = Path(__file__).parents[1]
    folders = package / "spec", package / "engines"
    files = [*package.glob("*.py"), *(file for folder in folders for file in folder.rglob("*.py"))]
    for file in sorted(files):
        yield str(file.relative_to(package)), file.read_bytes()
    installed = resources.files("eggroll").joinpath("kernels")
    for root in (installed, IN_TREE):
        for language in LANGUAGES:
            yield from _files(root.joinpath(language))


def _files(folder: Traversable) -> Iterator[tuple[str, bytes]]:
    if folder.is_dir():
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.is_file():
                yield f"{folder.name}/{file.name}", file.read_bytes()
