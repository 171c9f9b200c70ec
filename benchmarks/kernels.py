"""Rates of the cpu engine's kernels, one by one: `python benchmarks/kernels.py`.

A kernel's time is a slope: a tiny program with many copies of one operation against the same with
few, so that all they share falls out; a head is held against that of the smallest vocabulary. Every
program first has to agree with the portable engine.
Letters: P members, T tokens, V vocabulary, D width, L layers, O outputs, K inputs.
"""

from __future__ import annotations

import csv
import io
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import tyro
from checks import check_numbers, write_json
from tiny_programs import (
    BY_VOCABULARY,
    COPIES,
    SMALL,
    VECTORS,
    VOTED,
    Disagreement,
    Kernel,
    Subject,
    using,
    verify,
)

from eggroll import _extension
from eggroll.bench.command import macs_per_token
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.engines.cpu import LANES, CpuEngine
from eggroll.errors import InputError
from eggroll.files import check_place, write_whole
from eggroll.networks import egg
from eggroll.spec import rng
from eggroll.spec.program import Program

TARGET, LONGEST = 0.01, 0.5  # seconds that a timed call should and, for votes, may take


@dataclass(frozen=True)
class Options:
    """Options of benchmarks/kernels.py."""

    widths: tuple[int, ...] = (64, 128, 256)
    """Widths D."""
    vocabularies: tuple[int, ...] = (256, 1024, 10_000)
    """Vocabularies V of head and embedding."""
    ranks: tuple[int, ...] = (0, 1, 4)
    """Ranks of the noise; 0 is the unperturbed model."""
    isa: str = ""
    """One instruction set; empty is every usable one."""
    seq_len: Annotated[int, Range(1, 4096)] = 16
    """Tokens per call: a block's noise is gathered once for all of them."""
    pairs: Annotated[int, Range(1, 1 << 20)] = 5120
    """Pairs whose votes are counted; fewer where a call would take over half a second."""
    repeats: Annotated[int, Range(1, 1000)] = 5
    """Rounds over everything; the median counts."""
    quick: bool = False
    """Widths 64 and 256, vocabulary 256, ranks 0 and 1."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write everything measured as JSON."""
    csv: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the kernels' table as CSV."""


@dataclass(frozen=True)
class Row:
    """One kernel on one thread. The unit of ns is a token of a member or, for votes, a pair."""

    isa: str
    operation: str
    shape: str
    rank: int  # of the noise; 0 is none
    items: int  # members of a call, or pairs
    ns: float  # median
    spread: float  # (largest - smallest) / median
    gmacs: float | None  # 1e9 multiply-adds per second of the matrix, or of the votes
    of_limit: float | None  # of the register loop's best rate in the same rounds
    bytes_per_ns: float | None  # written, for what is no product


@dataclass
class Timed:
    """One kernel, or a whole network (`few` None), on one instruction set at one rank."""

    name: tuple[Any, ...]  # (operation or "votes", shape or (V, D, L))
    few: Subject | None
    many: Subject
    copies: float
    isa: str
    rank: int
    seq_len: int  # 0: the votes
    items: int = 0
    samples: list[float] = field(default_factory=list)  # ns of one item

    def seconds(self, subject: Subject, items: int) -> float:
        """The better of two calls: the first may find the caches full of another program."""
        return min(self._once(subject, items) for _ in range(2))

    def _once(self, subject: Subject, items: int) -> float:
        began = time.perf_counter()
        if self.seq_len:
            subject.evaluate(self.rank, items, self.seq_len)
        else:
            subject.votes(self.rank, items)
        return time.perf_counter() - began

    def warm_up(self, pairs: int) -> None:
        """Chooses how many items a call has; runs what will be timed."""
        with using(self.isa):
            if self.seq_len:
                blocks = TARGET / self.seconds(self.many, LANES)
                self.items = LANES * int(min(max(blocks, 1), 512))
            else:
                few = min(pairs, 256)
                self.items = min(pairs, max(few, int(few * LONGEST / self.seconds(self.many, few))))

    def sample(self) -> None:
        with using(self.isa):
            less = self.seconds(self.few, self.items) if self.few else 0.0
            slope = (self.seconds(self.many, self.items) - less) / self.copies
        self.samples.append(1e9 * slope / self.items / max(self.seq_len, 1))

    @property
    def ns(self) -> float:
        return statistics.median(self.samples)

    def row(self, limit: float) -> Row:
        operation, shape = self.name
        macs = prod(shape) * (1 if self.seq_len else self.rank)
        product = len(shape) == 2 and operation != "embed"
        timed = self.ns > 0  # else lost in the noise of the machine
        gmacs = macs / self.ns if product and timed else None
        return Row(
            self.isa, operation, "x".join(map(str, shape)), self.rank, self.items, self.ns,
            (max(self.samples) - min(self.samples)) / abs(self.ns or 1),
            gmacs,
            gmacs / limit if gmacs else None,
            shape[-1] / self.ns if not product and self.seq_len and timed else None,
        )  # fmt: skip


def kernels(options: Options) -> list[Kernel]:
    """Every operation at every width, and embedding and head for every vocabulary."""
    sizes = {True: sorted(set(options.vocabularies)), False: [SMALL]}
    return [
        Kernel(operation, D, V)
        for D in sorted(set(options.widths))
        for operation in COPIES
        for V in sizes[operation in BY_VOCABULARY]
    ]


def network(options: Options, width: int) -> tuple[int, int, int]:
    """(V, D, L) of the network whose budget is drawn up: a preset's, or one layer."""
    layers = {64: 1, 128: 2, 256: 6}.get(width, 1)
    return (256 if 256 in options.vocabularies else min(options.vocabularies)), width, layers


def subjects(options: Options, isas: Sequence[str], table: mx.array) -> list[Timed]:
    """Everything that is timed."""

    def on_cpu(program: Program) -> Subject:
        return Subject(CpuEngine(program, threads=1), table)

    work, seen = list[Timed](), set[tuple[int, ...]]()
    for kernel in kernels(options):
        low, high = COPIES[kernel.operation]
        few, many = on_cpu(kernel.program(low)), on_cpu(kernel.program(high))
        votes_apart = kernel.operation in VOTED and kernel.shape not in seen
        seen |= {kernel.shape} if votes_apart else set()
        for rank in kernel.ranks(options.ranks):
            # T 0 stands for the votes, which depend on the leaf's shape alone.
            lengths = [options.seq_len] + [0] * (votes_apart and rank > 0)
            work += [
                Timed((kernel.operation if T else "votes", kernel.shape), few, many, kernel.copies,
                      isa, rank, T)
                for T in lengths for isa in isas
            ]  # fmt: skip
    for width in sorted(set(options.widths)):
        shape = network(options, width)
        whole = on_cpu(egg(*shape))
        for rank in sorted({0, budget_rank(options)}):
            work += [
                Timed(("whole", shape), None, whole, 1, i, rank, options.seq_len) for i in isas
            ]
    return work


def budget_rank(options: Options) -> int:
    """The least noise that was asked for."""
    return min((r for r in options.ranks if r), default=0)


def measure(options: Options, isas: Sequence[str], work: list[Timed]) -> dict[str, float]:
    """Takes every sample, round by round; returns the register loops' GMAC/s."""
    native, limits = _extension.load(), {isa: list[float]() for isa in isas}
    for timed in work:
        timed.warm_up(options.pairs)
    for turn in range(options.repeats):
        print(f"round {turn + 1} of {options.repeats} ...", file=sys.stderr, flush=True)
        for isa in isas:
            with using(isa):
                limits[isa].append(native.peak(1) / 1e9)
        for timed in work:
            timed.sample()
    return {isa: max(rates) for isa, rates in limits.items()}  # a limit is a best


@dataclass(frozen=True)
class Share:
    """A part of one token's evaluation for one member, on one thread."""

    isa: str
    network: str
    part: str
    count: int
    plain_ns: float  # of all `count` of them, without noise
    ns: float  # with noise
    share: float  # ns over that of the measured evaluation


def budget(
    shape: tuple[int, int, int], isa: str, rank: int, work: Sequence[Timed], limit: float
) -> list[Share]:
    """Kernel times x counts in the network, beside the measured whole; limit in GMAC/s."""
    (V, D, L), program = shape, egg(*shape)
    ns = {(*t.name, t.rank): t.ns for t in work if t.isa == isa and t.seq_len}
    linear = {(D, D): "DxD", (4 * D, D): "4DxD", (D, 4 * D): "Dx4D"}
    counts = Counter[tuple[str, tuple[int, ...]]]()
    for op in (op for stage in program.stages for op in stage.ops):
        leaf = program.leaves[op.leaf].shape if op.leaf >= 0 else (D,)
        kind = linear[leaf] if op.kind == "linear" else {"score": "head"}.get(op.kind, op.kind)
        counts[kind, leaf] += 1
    rows = []
    for (kind, leaf), n in counts.items():
        with_noise = min(rank, 1) if kind in VECTORS else rank
        plain = ns[kind, leaf, 0]
        rows.append((kind, n, n * plain, n * ns.get((kind, leaf, with_noise), plain)))
    rows.append(("all kernels", 1, sum(r[2] for r in rows), sum(r[3] for r in rows)))
    whole = ns["whole", shape, rank]
    rows.append(("measured", 1, ns["whole", shape, 0], whole))
    bound = macs_per_token(program) / limit
    rows.append(("dot products alone", 1, bound, bound))
    name = f"D {D}, L {L}, V {V}"
    return [Share(isa, name, *row, row[3] / whole) for row in rows]


COLUMNS = {
    "isa": "{}", "operation": "{}", "shape": "{}", "rank": "{}", "items": "{:,}", "ns": "{:,.1f}",
    "spread": "{:.0%}", "gmacs": "{:.1f}", "of_limit": "{:.1%}", "bytes_per_ns": "{:.1f}",
}  # fmt: skip


def new_table(title: str, names: Sequence[str]) -> Any:
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(names):
        drawn.add_column(name.replace("_", "\n"), justify="right" if i else "left", no_wrap=True)
    return drawn


def table(rows: Sequence[Row]) -> Any:
    """The kernels for people."""
    drawn = new_table("", list(COLUMNS))
    for row in map(asdict, rows):
        drawn.add_row(*(COLUMNS[n].format(row[n]) if row[n] is not None else "-" for n in COLUMNS))
    return drawn


def budget_table(isa: str, rank: int, shares: Sequence[Share]) -> Any:
    """One instruction set's networks side by side."""
    names = list(dict.fromkeys(s.network for s in shares))
    heads = [name.replace(", ", "\n") for name in names]
    columns = [x for n in heads for x in (f"{n}\ncount", "ns\nplain", f"ns\nrank {rank}", "share")]
    drawn = new_table(f"{isa}: a token of a member", ["part", *columns])
    for part in dict.fromkeys(s.part for s in shares):
        cells = [part]
        for s in (s for name in names for s in shares if (s.network, s.part) == (name, part)):
            cells += [str(s.count), f"{s.plain_ns:,.0f}", f"{s.ns:,.0f}", f"{s.share:.1%}"]
        drawn.add_row(*cells)
    return drawn


def check(options: Options) -> tuple[Options, list[str]]:
    """Options with --quick applied and rank 0 added, and the instruction sets.

    Raises:
        InputError: an option is out of range.
    """
    cli.check_ranges(options)
    if options.quick:
        options = replace(options, widths=(64, 256), vocabularies=(256,), ranks=(0, 1))
    for name, low, high in (("widths", 1, 260), ("vocabularies", 16, 65536), ("ranks", 0, 64)):
        check_numbers(f"--{name}", getattr(options, name), low, high)
    for name in ("json", "csv"):
        check_place(f"--{name}", getattr(options, name))
    usable = _extension.load().usable_isas()
    if options.isa and options.isa not in usable:
        raise InputError(f"--isa is {options.isa!r}: one of {', '.join(usable)} is needed here.")
    options = replace(options, ranks=tuple(sorted({0, *options.ranks})))
    return options, [options.isa] if options.isa else usable


def write(options: Options, limits: dict[str, float], rows: list[Row], shares: list[Share]) -> None:
    """The files asked for."""
    if options.json:
        found = {"options": asdict(options), "machine": platform.platform(),
                 "register_loop_gmacs": limits, "kernels": list(map(asdict, rows)),
                 "budget": list(map(asdict, shares))}  # fmt: skip
        write_json(options.json, found)
    if options.csv:
        text = io.StringIO()
        writer = csv.DictWriter(text, [x.name for x in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))
        write_whole(Path(options.csv), text.getvalue().encode())


def report(options: Options, isas: Sequence[str]) -> None:
    """Verifies, measures, prints and writes."""
    from rich.console import Console

    noise, console = mx.array(rng.normal_bytes(rng.key(0, rng.TABLE), 1 << 24)), Console(width=140)
    for kernel in kernels(options):
        verify(kernel, isas, options.ranks, noise)
    print(f"verified: every kernel equals the portable engine, with {', '.join(isas)}", flush=True)
    work, rank = subjects(options, isas, noise), budget_rank(options)
    limits = measure(options, isas, work)
    for isa, limit in limits.items():
        print(f"{isa}: {limit:.1f} GMAC/s on registers, one thread")
    rows = [t.row(limits[t.isa]) for t in work if t.few]
    console.print(table(rows))
    shares = []
    for isa in isas:
        networks = [network(options, D) for D in sorted(set(options.widths))]
        found = [s for n in networks for s in budget(n, isa, rank, work, limits[isa])]
        console.print(budget_table(isa, rank, found))
        shares += found
    write(options, limits, rows, shares)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a kernel is wrong."""

    def work() -> int:
        words = sys.argv[1:] if argv is None else argv
        about = "Rates of the cpu engine's kernels, verified first."
        try:
            report(*check(cli.parse(Options, words, command="benchmarks/kernels.py", about=about)))
        except Disagreement as wrong:
            print(f"error: {wrong}", file=sys.stderr)
            return 1
        return cli.DONE

    return cli.run(work)


if __name__ == "__main__":
    sys.exit(main())
