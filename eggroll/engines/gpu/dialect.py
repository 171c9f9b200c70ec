"""Base of the GPU languages, Metal's and CUDA C++, for the writers of kernels.

Letters: M members of a threadgroup, D width. CUDA calls a threadgroup a block, a simdgroup a warp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import ClassVar, NamedTuple

from eggroll.engines.gpu.plan import FULL_GROUPS, Phase, StagePlan
from eggroll.errors import InputError
from eggroll.spec.program import Op

IN_TREE = Path(__file__).parents[3] / "extensions" / "int8_gemm"
VOTE_SIDE = 64  # SIDE of vote_product: a threadgroup counts VOTE_SIDE x VOTE_SIDE votes
VOTE_THREADS = 128  # of a threadgroup, in all kernels but those of stages


class KernelSource(NamedTuple):
    """A kernel as mx.fast takes it."""

    name: str
    inputs: tuple[str, ...]  # names of arrays
    outputs: tuple[str, ...]
    header: str
    body: str
    shared: int = 0  # bytes of threadgroup memory that the body declares; CUDA launches ask for it
    blocks: int = 0  # of CUDA, that a multiprocessor must have registers for; 0 if none is said
    threads: int = 0  # of such a block


class BlockNoise(NamedTuple):
    """Noise of a threadgroup: its type, and lines once it is declared."""

    kind: str
    lines: Sequence[str] = ()


class Dialect(ABC):
    """A language for kernels: its words, and the few constructs that differ by more than words."""

    folder: ClassVar[str]  # of its kernel files
    suffix: ClassVar[str]  # of their names
    includes: ClassVar[str] = ""
    constant: ClassVar[str]  # begins the declaration of a compile-time integer
    simdgroups: ClassVar[str]  # name of the constant that counts a threadgroup's simdgroups
    uint: ClassVar[str]
    ulong: ClassVar[str]
    device: ClassVar[str] = ""  # address spaces
    threadgroup: ClassVar[str] = ""
    group: ClassVar[str]  # a threadgroup's number, in any kernel and in a stage
    stage_group: ClassVar[str]
    part: ClassVar[str]  # its number along y
    thread: ClassVar[str]  # a thread's number, in kernels of VOTE_THREADS
    unit: ClassVar[tuple[str, int]]  # element of registers in memory: type, bytes
    logit: ClassVar[tuple[str, int]]  # the same of logits stored for a draw
    vector: ClassVar[tuple[str, int]] = ("", 1)  # the same of vectors stored with their noise
    value: ClassVar[str]  # type of a lane's value of a register
    adjacent: ClassVar[int]  # features of a member side by side, in registers and on tapes
    in_group: ClassVar[str]  # a thread's number in its threadgroup, of a Lane
    in_lane: ClassVar[str]  # the number of its simdgroup there
    element: ClassVar[str]  # index of a value in its tile
    feature: ClassVar[str]  # the row of a value
    row: ClassVar[str]  # arguments that give a row operation the lane's place
    tile: ClassVar[str]  # arguments that give a product its tile
    tile_template: ClassVar[str] = ""  # template argument for the size of a tile
    no_sums: ClassVar[tuple[str, str]]  # without x B: a declaration, and the products' argument
    state_barrier: ClassVar[bool]  # whether a state is restarted by other threads than loaded it
    exp2_words: ClassVar[int] = 0  # last entries of EXP2, which threadgroup memory gets a copy of
    vote_constants: ClassVar[Mapping[str, int]] = {}  # that vote_product needs besides RANK and CLT
    vote_staging: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # files that stage some terms faster
    vote_memory: ClassVar[str]  # declares the arrays in which vote_product stages terms
    vote_bytes: ClassVar[int]  # of those arrays
    vote_groups: ClassVar[int] = 4 * FULL_GROUPS  # threadgroups that keep a GPU busy with votes
    vote_lane: ClassVar[str]  # arguments that give vote_product the lane's place
    traces: ClassVar[str]  # body of the kernel that sums credit x input, as its tape is laid out

    def kernel_file(self, name: str) -> str:
        """Text of a kernel file: of this language, or common to all in gpu/NAME.h."""
        return kernel_text(f"{self.folder}/{name}{self.suffix}", f"gpu/{name}.h")

    def header(self, constants: str, files: Sequence[str]) -> str:
        """The head of a kernel: constants, the language's macros, then its files."""
        names = ("language", "fixed", *files)
        return self.includes + constants + "".join(map(self.kernel_file, names))

    def constants(self, **values: int) -> str:
        """Declares compile-time integers."""
        return "".join(f"{self.constant} {name} = {int(v)};\n" for name, v in values.items())

    def rows_of(self, size: int) -> int:
        """Rows, as `feature` counts them, that `size` features take."""
        return size

    def translate(self, body: str) -> str:
        """A kernel body with $group, $part, $thread, $uint and $device in this language's words."""
        words = ("group", "part", "thread", "uint", "device")
        return Template(body).substitute({word: getattr(self, word) for word in words})

    @abstractmethod
    def array(self, kind: str, name: str, values: Sequence[int], *, gathered: bool = False) -> str:
        """Declares a constant array. gathered: the lanes of a simdgroup read different elements."""

    @abstractmethod
    def share(self, kind: str, name: str, count: int, offset: int) -> list[str]:
        """Declares an array in threadgroup memory, `offset` bytes from its start."""

    @abstractmethod
    def barrier(self, device: bool) -> str:
        """A barrier of the threadgroup. device: for what is in device memory as well."""

    @abstractmethod
    def lane(self, plan: StagePlan) -> str:
        """An expression for the place of a thread."""

    @abstractmethod
    def product_files(self, plan: StagePlan) -> list[str]:
        """Kernel files of a stage's integer products."""

    @property
    @abstractmethod
    def vote_files(self) -> list[str]:
        """Kernel files of the integer product of votes."""

    @abstractmethod
    def product_input(self, plan: StagePlan, register: int) -> str:
        """A register as a product reads it."""

    @abstractmethod
    def tape_pointer(self, plan: StagePlan, values: str) -> str:
        """Bytes on a tape, of whose rows LD is the length, as a product reads a register."""

    @abstractmethod
    def row_loop(self, plan: StagePlan, phase: Phase) -> list[str]:
        """Opens the loop over a simdgroup's pairs."""

    def noise(self, plan: StagePlan) -> BlockNoise:
        """Noise as a stage's kernel has it."""
        return BlockNoise("egg::Noise")

    def matrix_argument(self, plan: StagePlan, leaf: int) -> str:
        """The argument that gives a product its matrix: the number in the stage's layout."""
        return str(plan.layout[leaf].index)

    def tile_turns(self, plan: StagePlan, phase: Phase) -> list[list[Op]]:
        """A phase's operations on tiles, in turns: products, then what follows them."""
        return [phase.tiles]

    @abstractmethod
    def tile_loop(self, plan: StagePlan, outputs: int, head: bool) -> list[str]:
        """Opens the loop over a simdgroup's tiles. head: the outputs are logits."""

    @abstractmethod
    def tile_values(self, plan: StagePlan, name: str, outputs: int, head: bool) -> str:
        """Declares the values of a tile that a lane computes."""

    @abstractmethod
    def tile_sums(self, plan: StagePlan, name: str, outputs: int) -> str:
        """Declares the undivided sums of a tile, int32, that a lane computes."""

    @abstractmethod
    def element_loop(self, plan: StagePlan, outputs: int, head: bool = False) -> list[str]:
        """Opens the loop over a lane's values of a tile."""

    @abstractmethod
    def elementwise(self, op: Op, operands: Sequence[str], argument: str) -> list[str]:
        """An operation on operands that a lane holds; in its other argument, @ is x or y."""

    @abstractmethod
    def bias(self, name: str, size: int, arguments: str, stored: bool) -> tuple[str, str]:
        """Declares a bias with its noise, and returns it as an argument of `elementwise`.

        stored: `arguments` say where `keep_vector` stored it.
        """

    @abstractmethod
    def tile_bytes(self, width: int, members: int) -> int:
        """Bytes of a token's activations of `members`, as a stage passes them on."""


@cache
def kernel_text(*files: str) -> str:
    """Text of the first of some kernel files that is there, e.g. gpu/mix.h; in-tree or installed.

    In a checkout an edited file is in effect at once. Raises InputError if none is there.
    """
    installed = resources.files("eggroll").joinpath("kernels")
    for place in (root.joinpath(file) for root in (IN_TREE, installed) for file in files):
        if place.is_file():
            return place.read_text("ascii")
    raise InputError(f"the kernel {files[0]} is missing: run `make build`, then try again.")
