"""The language in which a network is declared: typed integer operations over int8 registers.

Letters: V vocabulary, D width, K inputs of an operation. A program is a list of stages. Register x
passes from stage to stage, register s holds a stage's recurrent state; both are [D] int8 in Q4.
Networks are declared in networks.py and engines interpret them; nothing here knows how. Whatever a
method accepts runs on every engine; anything else is refused in one sentence.

A member reads one row at a time: a token, and whatever the caller shows beside it (Batch). A
program of no vocabulary has the tokens 0 and 1; in every program, token 0 begins anew with a zero
state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eggroll.errors import InputError, array_of, is_whole, shown, whole_number
from eggroll.spec.fixed_point import LIMIT, gate_tables

if TYPE_CHECKING:
    import mlx.core as mx

# name -> meaning. All values int8, clip(v) = clamp to +-127, w' = the member's perturbed leaf.
OPERATIONS: dict[str, str] = {
    "embed": "x = clip(E[t] + noise)",
    "linear": "y = clip((W x + noise) // (16 floor(sqrt K)))",
    "norm": "y_i = clip((x_i w'_i) // max(1, sum|x| // D))",
    "add": "y = clip(a + b)",
    "add_bias": "y = clip(a + b + w')",
    "lookup": "y = table[x]",
    "forget": "y = ((f + 127) s) >> 8",
    "mix": "y = s + (((f + 127) (h - s)) >> 8)",
    "score": "u = linear(x) + 128; log-likelihood = S/16 u_c - LOG2[sum EXP2[u]], in 1/S bit",
    "input": "x = clip(the row shown)",
    "features": "per list: y = clip((sum of E[f] over its indices f + noise) >> shift)",
    "bias": "y = clip(a + w')",
    "relu": "y = max(a, 0)",
    "concat": "y = a, then b",
    "output": "the caller has x, int8",
    "sums": "the caller has W x + noise, int32",
}
RESULTS = ("score", "output", "sums")  # operations that write no register
# Operations that carry no error back: a network that has one is trained by evolution.
FORWARD_ONLY: frozenset[str] = frozenset()
MAX_REGISTERS = 32  # of a stage, x and s included; kRegisters of plan.h
MAX_OPERATIONS = 64  # of a stage; kOps of plan.h
MAX_SIZE = 32767  # of a register; kSize of plan.h
MAX_VOCABULARY = 1 << 16
MAX_FEATURES = 1 << 20  # that a row chooses from
MAX_LISTS = 8  # of active features
MAX_ACTIVE = 256  # indices in a list
MAX_FEATURE_SHIFT = 7


class ProgramError(InputError, ValueError):
    """A declaration that an engine could not run: one sentence with the way out."""


Weights = Mapping[str, "mx.array"]
Leaves = dict[str, "mx.array"]


class Batch(NamedTuple):
    """All that P members read in T rows; None where the program asks for nothing.

    Engines take arrays of MLX with a row for every member. Callers and corpora have arrays of
    NumPy, with R rows: one for every member, or one for every group of members that read the same.
    """

    tokens: Any  # int32 [P, T]; 0 begins a document, also of a program that embeds none
    targets: Any = None  # int32 [P, T], of a program with a score
    state: Any = None  # int8 [P, state_size], an array of MLX, before the first row
    inputs: Any = None  # int8 [P, T, program.inputs]; -128 counts as -127
    features: Any = None  # int32 [P, T, program.indices], of every list; -1 for none
    errors: Any = None  # int8 [P, T, all outputs side by side], within +-127, to be carried back
    wanted: Any = None  # int32 [P, T, ..], what losses.Targets has, of which errors are made
    index: Any = None  # int32 [n] or None; with it features are spans of it, [P, T, all lists * 2]

    @property
    def size(self) -> tuple[int, int]:
        """P (or R) and T."""
        P, T = self.tokens.shape
        return P, T

    def each(self, change: Callable[[Any], Any]) -> Self:
        """The batch with every array changed, the state too; but not `index`, which has no rows."""
        made = type(self)(*(None if array is None else change(array) for array in self[:-1]))
        return made._replace(index=self.index)

    def rows(self, change: Callable[[Any], Any]) -> Self:
        """The batch with every array of rows changed, and the state as it is."""
        return self._replace(state=None).each(change)._replace(state=self.state)

    def members(self, which: slice) -> Self:
        """The batch of some of the members."""
        return self.each(lambda array: array[which])

    def at(self, t: int) -> Self:
        """Row t of all members, without the axis T."""
        return self.rows(lambda array: array[:, t])

    def window(self, rows: slice) -> Self:
        """Some of the rows of all members; `state` stays that before the first row of all."""
        return self.rows(lambda array: array[:, rows])


class Lists(NamedTuple):
    """Lists of active features of any length, in place of arrays that are filled up with -1.

    index: whole numbers [n], those of all lists; spans: whole numbers [R, T, lists, 2] or
    [R, lists, 2], where each list begins in `index` and how many it has. Lists may share numbers.
    """

    index: Any
    spans: Any

    @classmethod
    def csr(cls, starts: ArrayLike, index: ArrayLike, lists: int = 1) -> Self:
        """The rows of a sparse matrix in CSR form, `lists` of them in turn for each of R rows.

        starts: [R * lists + 1], where each begins in `index`, and the end of the last.

        Raises:
            InputError: starts are no whole numbers of 31 bits, or the rows do not divide into so
                many lists.
        """
        lists = whole_number("lists", lists, 1)
        at = whole_numbers("starts", starts)
        if at.ndim != 1 or len(at) < 2 or (len(at) - 1) % lists:
            raise InputError(
                f"starts has the shape {list(at.shape)}: [R * {lists} + 1] is needed for "
                f"{lists} lists of each row."
            )
        return cls(index, np.stack([at[:-1], np.diff(at)], axis=-1).reshape(-1, lists, 2))

    def arrays(self, program: Program) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The index [n] and the spans of all lists [R, T, lists, 2] or [R, lists, 2], int32.

        Raises:
            InputError: they are no whole numbers of 31 bits, or have another shape.
        """
        index = whole_numbers("The numbers of index", self.index)
        spans = whole_numbers("spans", self.spans)
        lists = sum(op.numbers[0] for op in program.sparse_ops)
        if index.ndim != 1:
            raise InputError(f"index has the shape {list(index.shape)}: [n] is needed.")
        if spans.ndim not in (3, 4) or spans.shape[-2:] != (lists, 2):
            raise InputError(
                f"spans have the shape {list(spans.shape)}: [R, T, {lists}, 2] is needed, or "
                f"without T for a single row."
            )
        if not index.size and spans[..., 1].any():
            raise InputError("spans take numbers of an index that has none: give it some.")
        return index if index.size else np.zeros(1, np.int32), spans

    def padded(self, program: Program) -> NDArray[np.int32]:
        """The same as an array that is filled up with -1, [R, T, program.indices] or without T.

        Raises:
            InputError: a list or an index that the program does not allow, which is named.
        """
        index, spans = self.arrays(program)
        made, first = [], 0
        for op in program.sparse_ops:
            lists, active, _, _ = op.numbers
            begins, sizes = np.moveaxis(spans[..., first : first + lists, :], -1, 0)
            leaf = program.leaves[op.leaf]
            bad = (begins < 0) | (sizes < 0) | (sizes > active) | (begins > len(index) - sizes)
            if bad.any():
                which = tuple(map(int, np.argwhere(bad)[0]))
                raise InputError(
                    f"List {[*which]} of spans begins at {begins[which]} and has "
                    f"{sizes[which]}: {leaf.name!r} takes at most {active} of the "
                    f"{len(self.index)} numbers of index."
                )
            there = np.arange(active) < sizes[..., None]
            found = index[np.where(there, begins[..., None] + np.arange(active), 0)]
            if (wrong := there & ((found < 0) | (found >= leaf.shape[0]))).any():
                raise InputError(
                    f"index has {found[wrong][0]} in a list of {leaf.name!r}: 0 to "
                    f"{leaf.shape[0] - 1} is needed."
                )
            made.append(np.where(there, found, -1).reshape(*spans.shape[:-2], lists * active))
            first += lists
        return np.concatenate(made, axis=-1).astype(np.int32, copy=False)


def whole_numbers(name: str, given: ArrayLike) -> NDArray[np.int32]:
    """An array of int32 in C's order, without a copy where it is one.

    Raises:
        InputError: it has no whole numbers, or one of more than 31 bits.
    """
    array = array_of(name, given)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{name} are {array.dtype}: whole numbers are needed.")
    if array.dtype != np.int32 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -(1 << 31) or high >= 1 << 31:
            raise InputError(f"{name} reach from {low} to {high}: numbers of 31 bits are needed.")
    return np.ascontiguousarray(array, np.int32)


@dataclass(frozen=True)
class Leaf:
    """A parameter: unique name, shape ([out, in] or [n]), and its initial value (None: normal)."""

    name: str
    shape: tuple[int, ...]
    init: int | None = None


class Op(NamedTuple):
    """One operation: registers[out] = kind(registers[inputs], leaves[leaf], table, numbers).

    numbers: of `features` (lists, indices per list, first index of the row, shift); of `output` and
    `sums` (place among the program's outputs,).
    """

    kind: str
    out: int
    inputs: tuple[int, ...] = ()
    leaf: int = -1
    table: str = ""
    numbers: tuple[int, ...] = ()

    @property
    def writes(self) -> bool:
        """True if its result goes to register `out`."""
        return self.kind not in RESULTS

    def plain(self) -> list[Any]:
        """Its fields as JSON values; numbers are left out where there are none."""
        values = [list(v) if isinstance(v, tuple) else v for v in self]
        return values if self.numbers else values[:-1]


class Output(NamedTuple):
    """An output for the caller, of every row: values [size], int8 or, of `sums`, int32."""

    name: str
    size: int
    wide: bool = False

    @property
    def dtype(self) -> mx.Dtype:
        import mlx.core as mx  # data are read without it

        return mx.int32 if self.wide else mx.int8


class Policy(NamedTuple):
    """A draw of actions: the leaf of its logits, and their place among the outputs.

    The output after it has the inputs of that leaf.
    """

    leaf: int
    output: int


@dataclass(eq=False)
class Stage:
    """Operations that hand only register x to the next stage.

    So all T tokens can run through one stage before the next begins. registers: their sizes;
    state: offset of register s in the member's state, or -1 where the stage has none.
    """

    ops: list[Op]
    registers: list[int]
    state: int


@dataclass(frozen=True)
class Register:
    """A value of one stage, int8 [size] in Q4; operations know it by its index there."""

    stage: Stage = field(repr=False)
    index: int
    size: int


X, S = 0, 1  # indices of registers x and s


def as_table(name: str, values: Sequence[int] | NDArray[Any]) -> NDArray[np.int8]:
    """Values of a table for `lookup`, int8 [255]; a ProgramError for others."""
    array = array_of(f"Table {name!r}", values)
    if array.shape != (255,) or array.dtype.kind not in "iu":
        raise ProgramError(
            f"Table {name!r} is {array.dtype} {list(array.shape)}: 255 whole numbers are needed, "
            "for -127 to 127."
        )
    if int(array.max()) > LIMIT or int(array.min()) < -LIMIT:
        raise ProgramError(f"Table {name!r} has values beyond -127 to 127.")
    return array.astype(np.int8)


def named(prefix: str, name: Any) -> str:
    """A name after its stage's prefix; a ProgramError for what is no text."""
    if not isinstance(name, str):
        raise ProgramError(f"The name {shown(name)} is of type {type(name).__name__}: give a str.")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ProgramError(f"The name {shown(name)} is no text that a file can hold: give another.")
    return prefix + name


def in_range(what: str, value: Any, low: int, high: int) -> int:
    """A whole number, of Python's or NumPy's, as Python's.

    Raises:
        ProgramError: it is none, or out of range.
    """
    if not is_whole(value) or not low <= value <= high:
        raise ProgramError(f"{what} is {shown(value)}: a number from {low} to {high} is needed.")
    return int(value)


@dataclass
class Program:
    """A network under construction: each method adds one operation and returns its register.

    vocabulary: V, 2..65,536; width: D of x and s, 1..32,767, which networks of one stage without a
    state leave out; score_bits: 4 or 8, for scores in units of 1/S bit with S = 2^score_bits.
    Every method raises ProgramError for an operation that an engine could not run, and `check` for
    a program that is not finished.
    """

    vocabulary: int = 2
    width: int = 1
    score_bits: int = 4
    leaves: list[Leaf] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    state_size: int = 0
    prefix: str = ""
    inputs: int = 0  # values of a row that `input` shows
    indices: int = 0  # of a row's features, all lists together
    outputs: list[Output] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    tables: dict[str, NDArray[np.int8]] = field(default_factory=lambda: gate_tables())

    def __post_init__(self) -> None:
        self.vocabulary = in_range("The vocabulary", self.vocabulary, 2, MAX_VOCABULARY)
        self.width = in_range("The width", self.width, 1, MAX_SIZE)

    @property
    def score_unit(self) -> float:
        """The bits that a score of 1 stands for."""
        return 2.0**-self.score_bits

    def stage(self, prefix: str = "", *, state: bool = False) -> tuple[Register, Register]:
        """Begins a stage whose leaf names start with `prefix`; returns its registers (x, s).

        s may be used where the stage has a state, which is zero where a document begins.
        """
        prefix = named("", prefix)
        if self.stages:
            self._check_stage()
            if self.scored:
                raise ProgramError("A stage follows the score: the score is in the last stage.")
            if all(op.out != X or not op.writes for op in self.stages[-1].ops):
                raise ProgramError(
                    f"{self._here} never writes x, so that no later stage sees what it computes: "
                    "write x with out=x."
                )
        offset = self.state_size if state else -1
        self.stages.append(stage := Stage([], [self.width, self.width], offset))
        self.state_size += self.width if state else 0
        self.prefix = prefix
        return Register(stage, X, self.width), Register(stage, S, self.width)

    def embed(self, name: str) -> Register:
        """x = the row of the token that is read, of a leaf [V, D]; the first of all operations."""
        leaf = Leaf(name, (self.vocabulary, self.width))
        return self._emit("embed", (), self.width, X, leaf)

    def input(self, size: int) -> Register:
        """The values that the caller shows, int8 [size], at any scale; Q4 by custom."""
        size = in_range("The size of the input", size, 1, MAX_SIZE)
        if self.inputs not in (0, size):
            raise ProgramError(
                f"An input has {self.inputs} values already: {size} are too many or few."
            )
        made, self.inputs = self._emit("input", (), size), size
        return made

    def features(
        self, name: str, count: int, size: int, *, active: int = 32, lists: int = 1, shift: int = 0
    ) -> Register:
        """Sparse inputs: per list, the sum of the rows of its indices, of a leaf [count, size].

        active: indices in a list, at most; lists: that share the leaf, their sums side by side in
        the order given in the row; shift: right shift of a sum before the clip.
        """
        count = in_range(f"The number of features of {name!r}", count, 1, MAX_FEATURES)
        size = in_range(f"The size of {name!r}", size, 1, MAX_SIZE)
        lists = in_range(f"The number of lists of {name!r}", lists, 1, MAX_LISTS)
        active = in_range(f"The active features of {name!r}", active, 1, MAX_ACTIVE)
        shift = in_range(f"The shift of {name!r}", shift, 0, MAX_FEATURE_SHIFT)
        in_range(f"The size of all lists of {name!r}", lists * size, 1, MAX_SIZE)
        if count < (lists - 1) * size:
            raise ProgramError(
                f"{name!r} has {count} features for {lists} lists of size {size}: at least "
                f"{(lists - 1) * size} are needed, so that every list has noise of its own."
            )
        leaf, numbers = Leaf(name, (count, size)), (lists, active, self.indices, shift)
        made = self._emit("features", (), lists * size, leaf=leaf, numbers=numbers)
        self.indices += lists * active
        return made

    def linear(self, x: Register, name: str, outputs: int) -> Register:
        """The product with a leaf [outputs, K]."""
        outputs = in_range(f"The number of outputs of {name!r}", outputs, 1, MAX_SIZE)
        leaf = Leaf(name, (outputs, self._size("linear", x)))
        return self._emit("linear", (x,), outputs, leaf=leaf)

    def norm(self, x: Register, name: str) -> Register:
        """x divided by its mean magnitude, times a leaf [n] that begins as 1.0."""
        n = self._size("norm", x)
        return self._emit("norm", (x,), n, leaf=Leaf(name, (n,), 16))

    def add(self, a: Register, b: Register, out: Register | None = None) -> Register:
        """a + b, in a new register or in `out`."""
        return self._emit("add", (a, b), self._size("add", a, b), out)

    def add_bias(self, a: Register, b: Register, name: str) -> Register:
        """a + b + a leaf [n] that begins as 0."""
        n = self._size("add_bias", a, b)
        return self._emit("add_bias", (a, b), n, leaf=Leaf(name, (n,), 0))

    def bias(self, x: Register, name: str, out: Register | None = None) -> Register:
        """x + a leaf [n] that begins as 0, in a new register or in `out`."""
        n = self._size("bias", x)
        return self._emit("bias", (x,), n, out, leaf=Leaf(name, (n,), 0))

    def relu(self, x: Register, out: Register | None = None) -> Register:
        """max(x, 0), in a new register or in `out`; clipped at 127 as every value is."""
        return self._emit("relu", (x,), self._size("relu", x), out)

    def concat(self, a: Register, b: Register, *more: Register) -> Register:
        """The values of a, then those of b, then those of the others."""
        sizes = [self._size("concat", register) for register in (a, b, *more)]
        in_range("The size of what concat makes", sum(sizes), 1, MAX_SIZE)
        joined = self._emit("concat", (a, b), sizes[0] + sizes[1])
        return self.concat(joined, *more) if more else joined

    def table(self, name: str, values: Sequence[int] | NDArray[Any]) -> str:
        """Declares a table for `lookup`: what -127, -126 .. 127 become, each in -127..127."""
        if not named("", name):
            raise ProgramError("The name of a table is empty: give it one.")
        array = as_table(name, values)
        if name in self.tables and not np.array_equal(self.tables[name], array):
            raise ProgramError(f"Table {name!r} is there already: give it another name.")
        self.tables = {**self.tables, name: array}
        return name

    def lookup(self, x: Register, table: str) -> Register:
        """Each element of x through a table: sigmoid, tanh, or one declared by `table`."""
        if not isinstance(table, str) or table not in self.tables:
            known = ", ".join(self.tables)
            raise ProgramError(f"Table {shown(table)} is unknown: choose one of {known}.")
        return self._emit("lookup", (x,), self._size("lookup", x), table=table)

    def forget(self, f: Register, s: Register) -> Register:
        """s times the gate (f + 127) / 256."""
        return self._emit("forget", (f, s), self._size("forget", f, s))

    def mix(self, f: Register, h: Register, s: Register, out: Register | None = None) -> Register:
        """s moved toward h by the gate (f + 127) / 256, in a new register or in `out`."""
        return self._emit("mix", (f, h, s), self._size("mix", f, h, s), out)

    def score(self, x: Register, name: str) -> None:
        """Logits by a leaf [V, K], and the target's log-likelihood; once, in the last stage."""
        leaf = Leaf(name, (self.vocabulary, self._size("score", x)))
        if self.scored:
            raise ProgramError(f"The score {name!r} is a second one: a program has one.")
        self._emit("score", (x,), self.vocabulary, X, leaf)

    def output(self, x: Register, name: str = "output") -> None:
        """The caller has x of every row, int8 [n]; logits by custom in 1/16 bit."""
        self._result("output", x, Output(named("", name), self._size("output", x)))

    def sums(self, x: Register, name: str, outputs: int) -> None:
        """The caller has the product with a leaf [outputs, K] of every row, undivided: int32.

        The output is named as the leaf, after the stage's prefix; that of `output` and `policy` as
        given.
        """
        outputs = in_range(f"The number of outputs of {name!r}", outputs, 1, MAX_SIZE)
        leaf = Leaf(name, (outputs, self._size("sums", x)))
        self._result("sums", x, Output(named(self.prefix, name), outputs, True), leaf)

    def policy(self, x: Register, name: str, actions: int) -> None:
        """Logits of a leaf [actions, K], which the caller has and from which actions are drawn.

        Token credit reads this leaf's votes out of the actions drawn, without noise on its outputs.
        """
        self._check_output(name)
        self._check_output(f"{name}.inputs")
        logits = self.linear(x, name, actions)
        self.policies.append(Policy(len(self.leaves) - 1, len(self.outputs)))
        self.output(logits, name)
        self.output(x, f"{name}.inputs")

    def _check_output(self, name: str) -> None:
        if any(name == other.name for other in self.outputs):
            raise ProgramError(f"Output {name!r} is declared twice: give one another name.")

    def _result(self, kind: str, x: Register, output: Output, leaf: Leaf | None = None) -> None:
        self._check_output(output.name)
        self._emit(kind, (x,), output.size, X, leaf, numbers=(len(self.outputs),))
        self.outputs.append(output)

    def check(self) -> None:
        """Raises ProgramError for a program that is not finished."""
        if not self.stages:
            raise ProgramError("The program is empty: begin with input, features or embed.")
        self._check_stage()
        if not (self.scored or self.outputs):
            raise ProgramError(
                "The program has neither score nor output: end it with score, output or sums."
            )
        if self.score_bits not in (4, 8):
            raise ProgramError(f"score_bits is {self.score_bits}: 4 or 8 is needed.")

    def declaration(self) -> dict[str, Any]:
        """The whole declaration as plain JSON values; its inverse is declaration.program_of."""
        used = {op.table for stage in self.stages for op in stage.ops if op.table}
        shown = {
            "inputs": self.inputs,
            "indices": self.indices,
            "outputs": [list(output) for output in self.outputs],
            "policies": [list(policy) for policy in self.policies],
        }
        return {
            "vocabulary": self.vocabulary,
            "width": self.width,
            "state": self.state_size,
            "leaves": [[leaf.name, list(leaf.shape), leaf.init] for leaf in self.leaves],
            "stages": [
                # What an operation does not have is left out, as it was before there was any.
                [[op.plain() for op in stage.ops], list(stage.registers), stage.state]
                for stage in self.stages
            ],
            "tables": {name: self.tables[name].tolist() for name in used},
        } | {key: value for key, value in shown.items() if value}

    def digest(self) -> str:
        """Sha256, hex, of the whole declaration, the same on every machine."""
        text = json.dumps(self.declaration(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def _here(self) -> str:
        prefix = f" ({self.prefix!r})" if self.prefix else ""
        return f"Stage {len(self.stages) - 1}{prefix}"

    @property
    def sparse_ops(self) -> list[Op]:
        """Its operations `features`, whose lists lie one after another in a row."""
        return [op for stage in self.stages for op in stage.ops if op.kind == "features"]

    @property
    def scored(self) -> bool:
        """True if there is a score: if the program is a language model."""
        return any(op.kind == "score" for stage in self.stages for op in stage.ops)

    def _check_stage(self) -> None:
        """Raises ProgramError unless the stage is worth running."""
        stage = self.stages[-1]
        if not stage.ops:
            raise ProgramError(f"{self._here} is empty: give it an operation or leave it out.")
        if stage.state >= 0 and all(op.out != S for op in stage.ops):
            raise ProgramError(
                f"{self._here} has a state and never writes it: write it with out=s, or begin "
                "the stage without state=True."
            )

    def _size(self, kind: str, *registers: Register) -> int:
        """The one size of an operation's registers, which hold values of the current stage."""
        for r in registers:
            self._check_register(kind, r)
        sizes = [r.size for r in registers]
        if len(set(sizes)) > 1:
            listed = ", ".join(map(str, sizes))
            raise ProgramError(f"{self._here}: {kind} needs registers of one size, not {listed}.")
        return sizes[0]

    def _holds(self, register: int) -> bool:
        """True if an operation of this stage has written the register."""
        return any(op.out == register and op.writes for op in self.stages[-1].ops)

    def _check_register(self, kind: str, r: Register) -> None:
        """Raises ProgramError unless the register may be read."""
        self._check_place(kind, r)
        if not self.stages[0].ops:
            raise ProgramError(
                f"The program begins with {kind}: begin with input, features or embed."
            )
        if r.index == X and len(self.stages) == 1 and not self._holds(X):
            raise ProgramError(f"{self._here}: {kind} uses register x, which holds nothing yet.")

    def _check_place(self, kind: str, r: Any) -> Register:
        if not isinstance(r, Register):
            raise ProgramError(f"{kind} needs a register, as operations return it, not {shown(r)}.")
        if not self.stages or r.stage is not self.stages[-1]:
            raise ProgramError(
                f"{kind} was given register {r.index} of another stage: only x passes from stage "
                "to stage, so use the registers that stage() has just returned."
            )
        if r.index == S and r.stage.state < 0:
            raise ProgramError(
                f"{self._here}: {kind} uses register s and the stage has no state: begin it with "
                "state=True."
            )
        return r

    def _emit(
        self,
        kind: str,
        inputs: tuple[Register, ...],
        size: int,
        out: Register | int | None = None,
        leaf: Leaf | None = None,
        table: str = "",
        numbers: tuple[int, ...] = (),
    ) -> Register:
        """Adds an operation whose result has `size`; out: None for a new register."""
        if not self.stages:
            self.stage()
        if len((stage := self.stages[-1]).ops) == MAX_OPERATIONS:
            raise ProgramError(f"{self._here} has {MAX_OPERATIONS} operations: begin another one.")
        if out is None and len(stage.registers) == MAX_REGISTERS:
            raise ProgramError(
                f"{self._here} has {MAX_REGISTERS} registers: begin another stage, or reuse one "
                "with out=."
            )
        if not (out is None or (isinstance(out, int) and kind in ("embed", *RESULTS))):
            there = self._check_place(kind, out)
            if there.size != size:
                raise ProgramError(
                    f"{self._here}: {kind} gives {size} values and out holds {there.size}."
                )
            out = there.index
        number = self._declare(leaf) if leaf else -1
        if out is None:
            stage.registers.append(size)
            out = len(stage.registers) - 1
        stage.ops.append(Op(kind, out, tuple(r.index for r in inputs), number, table, numbers))
        return Register(stage, out, stage.registers[out])

    def _declare(self, leaf: Leaf) -> int:
        """Adds a leaf, its name after the stage's prefix; returns its index."""
        leaf = replace(leaf, name=named(self.prefix, leaf.name))
        if any(leaf.name == other.name for other in self.leaves):
            raise ProgramError(f"Leaf {leaf.name!r} is declared twice: give one another name.")
        self.leaves.append(leaf)
        return len(self.leaves) - 1


# Programs from their declarations.

Parts = Sequence[Any]
IN_PLACE = ("add", "bias", "mix", "relu")  # may write a register that is there
FOREIGN = (
    AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
)  # fmt: skip


def program_of(declared: Mapping[str, Any], score_bits: int = 4) -> Program:
    """The program whose `declaration()` this is, built anew by the methods of Program.

    So what they refuse, and what they would not have made, is refused in a file as well.

    Raises:
        ProgramError: it is none.
    """
    try:
        net = _built(declared, score_bits)
        same = _text(net.declaration()) == _text(declared)
    except ProgramError as error:
        raise ProgramError(f"That is no declaration of a program: {error}") from error
    except FOREIGN as error:
        reason = f"{type(error).__name__}: {error}"
        raise ProgramError(f"That is no declaration of a program ({reason:.200}).") from error
    if not same:
        raise ProgramError(
            "That is no declaration of a program: its operations make another one than it says."
        )
    return net


def program_in(text: str, score_bits: int = 4) -> Program:
    """The program whose declaration a text has as JSON.

    Raises:
        ProgramError: it has none.
    """
    try:
        declared = json.loads(text)
    except FOREIGN as error:
        raise ProgramError(f"That is no declaration of a program ({error}).") from error
    return program_of(declared, score_bits)


def _text(declared: Mapping[str, Any]) -> str:
    """As JSON, in which true is not 1."""
    return json.dumps(declared, sort_keys=True)


def _built(declared: Mapping[str, Any], score_bits: int) -> Program:
    net = Program(declared["vocabulary"], declared["width"], score_bits)
    tables = {name: as_table(name, values) for name, values in declared["tables"].items()}
    net.tables = net.tables | tables
    leaves = [Leaf(name, tuple(shape), init) for name, shape, init in declared["leaves"]]
    for ops, registers, state in declared["stages"]:
        net.stage(state=state != -1)
        for op in ops:
            _operation(net, (*op, ())[:6], registers, leaves, declared)
    net.policies = [Policy(*policy) for policy in declared.get("policies", ())]
    _check_policies(net)
    net.check()
    return net


def _operation(
    net: Program, op: Parts, registers: Parts, leaves: Sequence[Leaf], declared: Mapping[str, Any]
) -> None:
    """Adds an operation to the last stage by the method of its kind."""
    kind, out, inputs, leaf, table, numbers = op
    if kind not in OPERATIONS:
        raise ProgramError(f"Operation {shown(kind)} is unknown.")
    registers_there = net.stages[-1].registers
    arguments: list[Any] = [_register(net, index) for index in inputs]
    options: dict[str, Any] = {}
    if kind == "input":
        arguments.append(registers[_place(out)])
    if kind == "output":
        arguments.append(declared["outputs"][_place(numbers[0])][0])
    if kind == "lookup":
        arguments.append(table)
    if leaf != -1:
        arguments.append(leaves[_place(leaf)].name)
    if kind in ("linear", "sums"):
        arguments.append(leaves[leaf].shape[0])
    if kind == "features":
        arguments += leaves[leaf].shape
        options["lists"], options["active"], _, options["shift"] = numbers
    if kind in IN_PLACE and _place(out) < len(registers_there):
        options["out"] = _register(net, out)
    getattr(net, kind)(*arguments, **options)


def _register(net: Program, index: Any) -> Register:
    stage = net.stages[-1]
    return Register(stage, _place(index), stage.registers[index])


def _place(index: Any) -> int:
    """An index that counts from the front."""
    if type(index) is not int or index < 0:
        raise IndexError(f"{shown(index)} is no index")
    return index


def _check_policies(net: Program) -> None:
    """Raises ProgramError unless each is the leaf and the output of one linear operation."""
    for policy in net.policies:
        leaf = net.leaves[_place(policy.leaf)]
        logits, inner = net.outputs[_place(policy.output)], net.outputs[policy.output + 1]
        if (logits.size, inner.size) != leaf.shape or inner.name != f"{logits.name}.inputs":
            raise ProgramError(f"Policy {shown(logits.name)} has not the outputs of one.")
