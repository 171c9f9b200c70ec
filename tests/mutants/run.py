"""Plants faults in the package, each alone, and sees that the tests named for it fail.

`make mutants` plants some in every module; ARGS="--count 200" more, ARGS="--only ranks" those of
one package, ARGS="--cpp --count 100" those of the C++ kernels (cpp.py), ARGS="--out
records/DATE-mutants" keeps the record and goes on with one that was stopped: what was caught stays
so while its file is the same, all else is tried again. A fault that no test sees is named with its
line: give it a test, or a line in `REASONS` that says why it changes nothing.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from house import MODULES, ROOT
from mutants import cpp, reach
from mutants.cpp import CppMutant

from eggroll import _extension

# Modules, by the beginning of their names -> the tests that hold them. The longest beginning wins.
TESTS: dict[str, str] = {
    "eggroll.spec.rng": "noise draws edges",
    "eggroll.spec.noise": "noise edges",
    "eggroll.spec.backward": "backward backward_rule edges doctored",
    "eggroll.spec.credit": "credit credit_groups edges draws credit_runs",
    "eggroll.spec.fixed_point": "draws golden noise rows engines edges doctored population",
    "eggroll.spec.program": "programs declaration declaration_rows",
    "eggroll.evolution.rules": "es whitening backward_rule golden edges ranks doctored replay",
    "eggroll.evolution.whitening": "whitening doctored",
    "eggroll.evolution.estimators": "edges credit rows population ranks replay trainer",
    "eggroll.evolution.population": "population ranks noise doctored",
    "eggroll.engines.base": "engines edges rows backward population",
    "eggroll.engines.portable": "engines programs credit backward credit_groups",
    "eggroll.ranks": "ranks ranks_rendezvous edges ranks_processes",
    "eggroll.data.columns": "tables safety",
    "eggroll.data.counting": "counting codings",
    "eggroll.data.expert": "expert",
    "eggroll.data.hub": "hub tables",
    "eggroll.data.codings": "codings safety cli",
    "eggroll.data": "data corpora api",
    "eggroll.files": "safety checkpoint ternary hub",
    "eggroll.errors": "errors safety api config",
    "eggroll.training.replay_log": "edges replay safety lm_runs",
    "eggroll.training.checkpoint": "checkpoint doctored cli",
    "eggroll.training.config": "config cli train",
    "eggroll.lm": "lm lm_runs",
    "eggroll.networks": "edges programs golden credit_groups declaration declaration_rows rows",
    "eggroll.replay": "replay edges",
    "eggroll.sweep.space": "sweep_space",
    "eggroll.cli.entry": "limits",
    "eggroll.__main__": "cli completion api",
    "eggroll._extension": "errors engines",
    "eggroll.adamw": "adamw closing",
    "eggroll.baseline.backprop": "adamw credit_learning replay",
    "eggroll.baseline.twin": "twin_outputs twin_rounding backward_runs adamw",
    "eggroll.bench": "bench ratios_bench performance gpu/cuda_machine",
    "eggroll.cli": "cli display help limits sweep_space completion clock train",
    "eggroll.bench.__main__": "help",
    "eggroll.report.__main__": "help",
    "eggroll.sweep.__main__": "help",
    "eggroll.completion": "completion",
    "eggroll.engines": "engines gpu/guard probe output_errors",
    "eggroll.engines.cpu": "cpu_rows rows engines doctored",
    "eggroll.engines.cuda": "gpu/planted gpu/cuda gpu/cuda_launch gpu/gpu_sources gpu/pace",
    "eggroll.engines.gpu": "gpu/planted gpu/guard gpu/pace gpu/gpu_sources gpu/gpu gpu/cuda_launch",
    "eggroll.engines.guard": "gpu/guard gpu/planted gpu/guard_rotation gpu/guarded_runs",
    "eggroll.engines.metal": "gpu/planted gpu/metal gpu/metal_source_checks gpu/gpu_sources",
    "eggroll.engines.nvrtc": "gpu/cuda_launch gpu/driver gpu/cuda_compile",
    "eggroll.engines.trial": "trial gpu/guard probe",
    "eggroll.envs": "envs environments api",
    "eggroll.evolution.step": "doctored replay backward_runs ranks",
    "eggroll.generate": "cli sampling api replay",
    "eggroll.inference": "sampling api population cli",
    "eggroll.launch": "help ranks_processes lm_runs",
    "eggroll.library": "members trainer api credit_groups doctored going_on",
    "eggroll.library.export": "export",
    "eggroll.library.folder": "doctored going_on trainer_log lm_runs",
    "eggroll.library.gradient_trainer": "gradient_trainer members",
    "eggroll.library.language": "api expert codings",
    "eggroll.library.pool": "pool doctored",
    "eggroll.library.trainer": "trainer members doctored gradient_trainer labels going_on policy",
    "eggroll.library.worlds": "native_worlds doctored",
    "eggroll.native": "safety native_build native_worlds",
    "eggroll.plot": "plot cli",
    "eggroll.probe": "probe",
    "eggroll.report": "report expert",
    "eggroll.spec.losses": "labels",
    "eggroll.sweep": "sweep_space sweep sweep_trials sweep_best sweep_lost",
    "eggroll.training.chain": "replay credit_runs verify corpora",
    "eggroll.training.clock": "clock doctored config",
    "eggroll.training.curves": "plot cli corpora",
    "eggroll.training.folder": "cli config checkpoint trainer_log",
    "eggroll.training.learner": "replay credit_runs backward_runs",
    "eggroll.training.loop": "cli replay config statistics train edges expert",
    "eggroll.training.pictures": "plot cli",
    "eggroll.training.run": "cli ranks replay config train statistics",
    "eggroll.training.statistics": "statistics statistics_warnings replay config",
    "eggroll.training.trackers": "trackers trainer_log",
    "eggroll.training.verify": "verify ranks_processes",
}
# (module, line's text) -> why a mutant of that line that no test sees is none.
BOUND = "a bound on memory: slices that are not kept are drawn again, the same"
ROOM = "room for the text on the screen, which takes less"
LACKING = "a log that lacks updates is never added to, so what was planned in it is not read"
REASONS: dict[tuple[str, str], str] = {
    (
        "eggroll.engines.cuda_launch",
        '"two each.", EngineWarning, stacklevel=2,',
    ): "which line a warning names: the package's own all the same",
    (
        "eggroll.engines.gpu.dialect",
        'vector: ClassVar[tuple[str, int]] = ("", 1)  # the same of vectors stored with their noise',  # noqa: E501
    ): "the dialect whose plans store vectors has its own",
    (
        "eggroll.engines.gpu.launch",
        "MIN_MACS, MAX_MACS = 1 << 30, 1 << 42  # of any portion",
    ): "how much work is waited for together, by a GPU's pace",
    (
        "eggroll.engines.nvrtc",
        "MOST_BYTES = 256 << 20  # of kept machine code; a kernel has some 50 KiB",
    ): "a bound on a cache: what it drops is compiled again",
    (
        "eggroll.library.gradient_trainer",
        "threads: Whole = 0,",
    ): "how many cores are taken: seconds alone",
    (
        "eggroll.envs.spaces",
        "return lambda seen: seen.reshape(len(seen), -1).astype(np.int8) * np.int8(ONE)",
    ): "NumPy takes any size below 0 for what is left",
    ("eggroll.bench.command", "Console(width=140).print(table(results.rows))"): ROOM,
    ("eggroll.spec.noise", "room = KEPT - drawn.starts.nbytes"): BOUND,
    (
        "eggroll.spec.noise",
        "KEPT = 1 << 28  # bytes of slices that are kept for the votes and for later updates of an epoch",  # noqa: E501
    ): BOUND,
    (
        "eggroll.training.replay_log",
        "LONGEST_FACTS, MOST_PAIRS = 1 << 24, 1 << 23",
    ): "bounds on memory, far above what is written",
    (
        "eggroll.training.replay_log",
        "data += file.read(header.record - len(data))",
    ): "reads further ahead than it need",
    (
        "eggroll.training.replay_log",
        'return Kept(header, 0, f"there is no {str(path)!r}")',
    ): LACKING,
    (
        "eggroll.training.replay_log",
        'return Kept(header, 0, f"{str(path)!r} is damaged")',
    ): LACKING,
    (
        "eggroll.training.replay_log",
        'return Kept(found, 0, f"{str(path)!r} is of another run")',
    ): LACKING,
    (
        "eggroll.spec.noise",
        "self._epoch, self._kept = -1, dict[tuple[int, int], Slices]()",
    ): "no epoch has a number below 0",
    (
        "eggroll.data.codings",
        "READ_BLOCK: Final = 1 << 22  # bytes of a split read at a time",
    ): "so much is read at a time, all the same",
    (
        "eggroll.training.config",
        "lanes = 32 * (-(-self.width // 8) * 8) * tokens  # a thread's block of 32 members",
    ): "a low estimate of memory",
    (
        "eggroll.engines.portable.backward",
        "return ((y == fx.LIMIT) & (c > 0)) | ((y == -fx.LIMIT) & (c < 0))",
    ): "an error of 0 stays 0 either way",
    (
        "eggroll.engines.portable.engine",
        "def __init__(self, program: Program, threads: int = 0, block_tokens: int = 0) -> None:",
    ): "threads and blocks change no bits",
    (
        "eggroll.evolution.population",
        "first_chunk = skip, min(self.chunk, members) // 2",
    ): "what is drawn ahead and not asked for is drawn again",
    (
        "eggroll.files",
        "if abs(wide).max(initial=0) > MOST_SMALL:",
    ): "of an empty array; 1 is small as well",
    (
        "eggroll.evolution.whitening",
        "identity = ONE * np.eye(p.shape[1])",
    ): "blocks are square: either length",
    (
        "eggroll.lm.generation",
        'hidden = number("hidden_size", 1024)',
    ): "an estimate of memory, for models that do not tell their width",
    (
        "eggroll.ranks.rendezvous",
        "socket.create_connection(self.socket.getpeername()[:2], timeout=1).close()",
    ): "seconds that a dead machine is waited for; addresses of IPv4 have two parts",
    (
        "eggroll.replay",
        'return (-1, ""), f"not compared: the checkpoint is of update {saved.step}"',
    ): "no update has a number below 0",
}
# Faults that went unseen once, with the tests that see them now: module, old and new text, tests.
KNOWN: tuple[tuple[str, str, str, str], ...] = (
    ("spec.noise", "shape, rank) + 1 for", "shape, rank) for", "edges"),
    ("evolution.rules", "alpha if alpha <= 1", "alpha if alpha < 1", "edges"),
    ("training.replay_log", "found and found.step == step else", "found else", "edges"),
    ("evolution.estimators", "((2 * abs(n) + by) // (2 * by))", "(abs(n) // by)", "edges"),
    ("evolution.estimators", "np.rint(difference * (mean", "np.floor(difference * (mean", "edges"),
    (
        "ranks.rendezvous",
        'if not _same(answer.get("proof")',
        "if not _same(own",
        "ranks_rendezvous",
    ),
    (
        "ranks.watch",
        "self._heard[rank] > self.limit:",
        "self._heard[rank] > 3 * self.limit:",
        "edges",
    ),
    ("ranks.watch", "if now - previous > 2 * period:", "if False:", "edges"),
    ("evolution.estimators", "(16 if one_byte", "(32 if one_byte", "edges"),
    ("engines.base", "MAX_VALUE = 1 << 19", "MAX_VALUE = 1 << 18", "edges"),
    ("evolution.estimators", "discount=options.discount", "discount=0", "edges"),
    # Of GPUs. Faults in the text of kernels (a loop that is not unrolled, a barrier or an address
    # space left out, float sums beyond 2^24) are planted by tests/gpu in every `make test`.
    ("engines.gpu.stage", "-(-size // 16) * 16", "-(-size // 32) * 16", "gpu/planted"),
    ("engines.cuda", "right, {VOTE_STAGE}, {", "right, {VOTE_STAGE - 288}, {", "gpu/planted"),
    ("engines.cuda", "vote_bytes = 2 * VOTE_STAGE", "vote_bytes = VOTE_STAGE", "gpu/planted"),
    ("engines.metal", "vote_bytes = 64", "vote_bytes = 32", "gpu/planted"),
    (
        "engines.guard",
        '"evaluate": lambda out: CallResult({"scores": out[0], "state": out[1]}),',
        '"evaluate": lambda out: CallResult({"scores": out[0]}),',
        "gpu/planted",
    ),
    ("engines.gpu.plan", "if m % 16 == 0 or not nax", "if m", "gpu/planted"),
    ("engines.cuda_launch", 'if source.blocks else ""', 'if False else ""', "gpu/planted"),
    ("engines.gpu.launch", "elif seconds > SECONDS and not", "elif False and not", "gpu/pace"),
    (
        "engines.gpu.engine",
        "count = min(max(self.pace.macs // macs, MIN_PAIRS), N - first)",
        "count = N - first",
        "gpu/pace",
    ),
    ("engines.guard", "self._inspections.pop(key, None)", "pass", "gpu/planted"),
    ("engines.guard", "np.linspace(half, N - 1", "np.linspace(0, half", "gpu/guard"),
)
SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.LShift: ">>",
    ast.RShift: "<<", ast.Mod: "//", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.LShift: "<<",
    ast.RShift: ">>", ast.Mod: "%", ast.And: "and", ast.Or: "or",
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A change of a module's text: at this offset, `old` becomes `new`."""

    module: str
    line: int
    at: int
    old: str
    new: str
    text: str  # of the line
    tests: tuple[str, ...]


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module."""
    text = MODULES[module].read_text()
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        """The offset in the text of a column that counts UTF-8."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    tree = ast.parse(text)
    silent, tests = _silent(tree), tuple(tests_of(module))
    found = []
    for node in ast.walk(tree):
        if node in silent or not hasattr(node, "lineno"):
            continue
        for first, last, old, new in _changes(node):
            begin, end = place(*first), place(*last)
            at = text.find(old, begin, end)
            if at >= 0 and text[begin:at].strip(" ()\n") == "":
                row = text.count("\n", 0, at) + 1
                line_text = lines[row - 1].strip()
                found.append(Mutant(module, row, at, old, new, line_text, tests))
    return sorted(set(found), key=lambda mutant: (mutant.at, mutant.new))


def known_mutants() -> list[Mutant]:
    """Those of KNOWN, whose text must stand in its module once."""
    found = []
    for name, old, new, words in KNOWN:
        module = f"eggroll.{name}"
        text = MODULES[module].read_text()
        if text.count(old) != 1:
            raise ValueError(f"{module} has {old!r} {text.count(old)} times")
        at, tests = text.index(old), tuple(files_of(words))
        found.append(Mutant(module, text.count("\n", 0, at) + 1, at, old, new, old, tests))
    return found


Change = tuple[tuple[int, int], tuple[int, int], str, str]  # begin, end, old and new text


def _changes(node: ast.AST) -> Iterator[Change]:
    """Where a node may be changed: between two places, one text into another."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        yield _between(node.left, node.comparators[0], node.ops[0])
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        if not isinstance(node.left, ast.Constant | ast.JoinedStr) or not isinstance(
            getattr(node.left, "value", 0), str
        ):
            yield _between(node.left, node.right, node.op)
    elif isinstance(node, ast.BoolOp):
        yield _between(node.values[0], node.values[1], node.op)
    elif isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value < 1 << 20:
        begin, end = (
            (node.lineno, node.col_offset),
            (node.end_lineno or 0, node.end_col_offset or 0),
        )
        yield begin, end, ast.unparse(node), str(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        begin = (node.lineno, node.col_offset)
        yield begin, (node.operand.lineno, node.operand.col_offset), "not ", ""
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in CALLS:
        name = node.func
        assert isinstance(name, ast.Name)
        begin = (name.lineno, name.col_offset)
        yield begin, (name.end_lineno or 0, name.end_col_offset or 0), name.id, CALLS[name.id]


def _between(left: ast.expr, right: ast.expr, op: ast.AST) -> Change:
    begin = (left.end_lineno or 0, left.end_col_offset or 0)
    return begin, (right.lineno, right.col_offset), SIGNS[type(op)], SWAPS[type(op)]


def _silent(tree: ast.AST) -> set[ast.AST]:
    """Nodes whose change is none of behaviour: types, and what a sentence is made of."""
    silent: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)
            parts = [node.returns, *(argument.annotation for argument in every)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.JoinedStr | ast.Raise):
            parts = [node]
        for part in parts:
            silent |= set(ast.walk(part)) if part else set()
    return silent


def tests_of(module: str) -> list[str]:
    """Files of the tests that hold a module; none where the table has none."""
    longest = max((name for name in TESTS if module.startswith(name)), key=len, default="")
    return files_of(TESTS.get(longest, ""))


def files_of(words: str) -> list[str]:
    """Files of tests: "edges gpu/pace" are tests/test_edges.py and tests/gpu/test_pace.py."""
    parts = (word.rpartition("/") for word in words.split())
    return [f"tests/{folder}{slash}test_{name}.py" for folder, slash, name in parts]


T = TypeVar("T")


def dealt(
    decks: Sequence[list[T]], count: int, chance: random.Random, known: Callable[[T], bool]
) -> list[T]:
    """So many mutants: those that are known, and others at random, from every deck as many."""
    chosen, hands = list[T](), list[tuple[int, int, list[T]]]()
    for i, deck in enumerate(decks):
        shuffled = chance.sample(deck, len(deck))  # the same, whatever is known
        old = [mutant for mutant in shuffled if known(mutant)]
        new = [mutant for mutant in shuffled if mutant not in old]
        chosen += old
        hands += [(len(old) + more, i, [mutant]) for more, mutant in enumerate(new)]
    hands.sort(key=lambda hand: hand[:2])
    return (chosen + [mutant for _, _, deal in hands for mutant in deal])[:count]


LEFT_OUT = "left out"  # what does not compile, or to the same library
NO_CHANGE = "changes nothing"
LASTING = ("caught", NO_CHANGE, LEFT_OUT)


class Record:
    """What became of mutants, printed and written as it comes."""

    def __init__(self, out: Path | None) -> None:
        """out: the file, whose rows of files as they are now stay until they are tried again."""
        self.out, self.rows, self.counts = out, dict[str, dict[str, Any]](), Counter[str]()
        old = out.read_text().splitlines() if out and out.exists() else []
        for row in map(json.loads, old):
            if row["of"] == _digest((ROOT / row["at"].partition(":")[0]).read_text()):
                self.rows[_key(row)] = row
        self._began = time.monotonic()

    def has(self, mutant: Mutant | CppMutant, path: Path) -> bool:
        """Whether a mutant was tried, whatever became of it."""
        return _key(_row(mutant, path)) in self.rows

    def again(self, mutant: Mutant | CppMutant, path: Path, reason: str = "") -> bool:
        """Whether the record has a mutant's lasting fate, which then counts; one that no test saw
        has it as soon as there is a reason."""
        row = self.rows.get(_key(_row(mutant, path)), {"fate": ""})
        if row["fate"] == "survived" and reason:
            row |= {"fate": NO_CHANGE, "by": reason}
        if row["fate"] in LASTING:
            self.counts[row["fate"]] += 1
        return row["fate"] in LASTING

    def add(
        self, mutant: Mutant | CppMutant, path: Path, fate: str, test: str, reason: str
    ) -> None:
        """path: of the file that it changes."""
        fate = NO_CHANGE if fate == "survived" and reason else fate
        if fate == "survived":
            change = f"{mutant.old!r} -> {mutant.new!r} in {mutant.text}"
            print(f"survived: {path.relative_to(ROOT)}:{mutant.line}: {change}", flush=True)
        self._keep(_row(mutant, path) | {"fate": fate, "by": test or reason})
        seconds = time.monotonic() - self._began
        where = f"{path.relative_to(ROOT)}:{mutant.line}"
        print(
            f"{sum(self.counts.values())} {fate} {where} {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        self._began += seconds

    def _keep(self, row: dict[str, Any]) -> None:
        self.counts[row["fate"]] += 1
        self.rows[_key(row)] = row
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(row) + "\n" for row in self.rows.values())
            self.out.write_text(lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _key(row: dict[str, Any]) -> str:
    return "{at} {old} {new} {of}".format_map(row)


def _row(mutant: Mutant | CppMutant, path: Path) -> dict[str, Any]:
    """What a record knows a mutant by: of this text of its file."""
    text = path.read_text()
    column = mutant.at - text.rfind("\n", 0, mutant.at)
    change = {"at": f"{path.relative_to(ROOT)}:{mutant.line}:{column}", "text": mutant.text}
    return change | {"old": mutant.old, "new": mutant.new, "of": _digest(text)}


def python(options: argparse.Namespace, record: Record) -> int:
    """Mutants of the package's modules."""
    names = [name for name in MODULES if tests_of(name)]
    names = [name for name in names if name.startswith(f"eggroll.{options.only}")]
    chosen = [m for m in known_mutants() if m.module.startswith(f"eggroll.{options.only}")]
    decks = [mutants_of(name) for name in names]
    chance = random.Random(options.seed)
    chosen += dealt(decks, options.count, chance, lambda m: record.has(m, MODULES[m.module]))
    print(f"{len(chosen)} mutants of {len(names)} modules", flush=True)
    one = threading.Lock()  # measures
    every = {test for words in TESTS.values() for test in files_of(words)}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as workers:

        def tried(mutant: Mutant) -> tuple[str, str]:
            changed = Path(folder) / f"{id(mutant)}.py"
            text = MODULES[mutant.module].read_text()
            end = mutant.at + len(mutant.old)
            changed.write_text(text[: mutant.at] + mutant.new + text[end:])
            with one:
                if not pass_without({*mutant.tests}):
                    return "unsure", "tests that fail without it"
            where = reach.function_at(mutant.module, mutant.line)
            ordered, change = reach.in_order(mutant.tests, where), f"{mutant.module}:{changed}"
            fate, test = reach.outcome(*ordered, change)
            if fate == "survived" and where:
                others = reach.elsewhere(every - {*mutant.tests}, where)
                fate, test = reach.outcome(*others, change, only=True)
            return fate, test

        chosen = [m for m in chosen if not record.again(m, MODULES[m.module], reason_of(m))]
        for mutant, (fate, test) in zip(chosen, workers.map(tried, chosen), strict=True):
            record.add(mutant, MODULES[mutant.module], fate, test, reason_of(mutant))
    return 0


def reason_of(mutant: Mutant | CppMutant) -> str:
    """Why a mutant that no test sees is none; empty where that is not known."""
    if isinstance(mutant, CppMutant):
        return cpp.REASONS.get(mutant.change, "")
    return REASONS.get((mutant.module, mutant.text), "")


def pass_without(tests: set[str], isa: str = "", without: str = "") -> bool:
    """Whether tests pass without a mutant; what they reach is known from then on.

    isa: of the kernels that they reach; without: what reach.outcome calls them.
    """
    for test in sorted(tests):
        began = time.monotonic()
        try:
            found = reach.reach_of(test, isa)
        except reach.Failing:
            print(f"fail without a mutant: {test}", file=sys.stderr)
            return False
        if isa and not found.unsure:  # they passed with the same sources
            reach.PASSING.update((name, without) for name in found.seconds)
        if (seconds := time.monotonic() - began) > 1:
            print(f"{test} {isa} {seconds:.0f} s", file=sys.stderr, flush=True)
    return True


def kernels(options: argparse.Namespace, record: Record) -> int:
    """Mutants of the C++ kernels, for the instruction sets that this processor has."""
    usable = set(_extension.load().usable_isas())
    files = [f for f, (isa, _) in cpp.FILES.items() if isa in usable and f.startswith(options.only)]
    decks = [cpp.mutants_of(file) for file in files]
    chosen = [mutant for mutant in cpp.known_mutants() if mutant.file in files]
    wanted = len(chosen) + options.count

    def path_of(mutant: CppMutant) -> Path:
        return ROOT / cpp.SOURCES / mutant.file

    # Twice as many as are wanted, as some do not compile or give the same library.
    count, chance = 2 * options.count, random.Random(options.seed)
    chosen += dealt(decks, count, chance, lambda m: record.has(m, path_of(m)))
    chosen = [m for m in chosen if not record.again(m, path_of(m), reason_of(m))]
    plain = cpp.Build(jobs=options.jobs)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as compiler:

        def named(kind: str, library: bytes) -> str:
            """What reach.outcome calls a library, written to a folder."""
            file = Path(folder) / kind / "_int8_gemm.so"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(library)
            return f"{cpp.MODULE}:{file}"

        without = named("original", plain.original)
        waiting = list[Future[bytes | None]]()
        for i, mutant in enumerate(chosen):
            if sum(record.counts.values()) - record.counts[LEFT_OUT] >= wanted:
                break
            if not pass_without({*mutant.tests}, mutant.isa, without):
                return 1
            # With two jobs the next is compiled while this one is tried.
            ahead = chosen[i:][len(waiting) : options.jobs]
            waiting += [compiler.submit(plain.build, m) for m in ahead]
            library = waiting.pop(0).result()
            if library is None or library == plain.original:
                record.add(mutant, path_of(mutant), LEFT_OUT, "", "")
                continue
            ordered = reach.kernels_in_order(mutant.tests, mutant.where, mutant.isa)
            changed = named("changed", library)
            fate, test = reach.outcome(*ordered, changed, without, mutant.isa, only=True)
            record.add(mutant, path_of(mutant), fate, test, reason_of(mutant))
        for future in waiting:
            future.cancel()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpp", action="store_true", help="of the C++ kernels")
    parser.add_argument(
        "--count", type=int, default=60, help="beside those once unseen, dealt to files evenly"
    )
    parser.add_argument(
        "--only", default="", help="the beginning of modules' names, without eggroll., or of files'"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice among all mutants")
    parser.add_argument("--jobs", type=int, default=2, help="processes that try and compile")
    parser.add_argument("--out", type=Path, help="a folder for the record")
    options = parser.parse_args()
    name = "mutants-cpp.jsonl" if options.cpp else "mutants.jsonl"
    record = Record(options.out and options.out / name)
    code = (kernels if options.cpp else python)(options, record)
    print(", ".join(f"{count} {fate}" for fate, count in sorted(record.counts.items())))
    return code


if __name__ == "__main__":
    sys.exit(main())
