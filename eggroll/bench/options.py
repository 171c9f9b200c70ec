"""Options of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from eggroll import cli, plot
from eggroll.bench import PRESETS, Preset
from eggroll.cli import Range
from eggroll.errors import InputError
from eggroll.help import Group


@dataclass(frozen=True)
class Options:
    """Options of eggroll.bench."""

    preset: Preset = "seed"
    """Network: seed has width 256, 1 layer, vocabulary 1024; the others have vocabulary 256: paper
    width 256, 6 layers; medium 128, 2; small 64, 1."""
    pops: tuple[int, ...] = (1024, 10240, 32768, 262144)
    """Populations, timed one after another; each even."""
    seq_len: Annotated[int, Range(0, 1 << 16)] = 0
    """Tokens a member reads per update; 0 is the preset's 16."""
    rank: Annotated[int, Range(1, 64)] = 1
    """Rank of a matrix's perturbation; a step takes longer with more."""
    repeats: Annotated[int, Range(1, 1000)] = 5
    """Steps timed per population, after one that is not; the table has their median."""
    quick: bool = False
    """Only populations 1024 and 10240, three repeats each: about a minute."""
    engine: Annotated[Literal["auto", "portable", "cpu", "metal", "cuda"], Group.ENGINE] = "auto"
    """What computes; auto takes the fastest that works here."""
    chunk: Annotated[int, Range(0, 1 << 24, 2), Group.ENGINE] = 0
    """Members evaluated at a time (even); 0 lets a memory budget decide."""
    threads: Annotated[int, Range(0, 1024), Group.ENGINE] = 0
    """Threads of the cpu engine; 0 is all cores."""
    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write everything measured as JSON."""
    csv: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write the table as CSV."""
    picture: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also draw rates over the population, beside those predicted for GPUs (.png, .svg or .pdf)."""

    @property
    def tokens(self) -> int:
        """T: tokens of a member per update."""
        return self.seq_len or PRESETS[self.preset]["seq_len"]


def check(options: Options) -> Options:
    """Raises InputError for bad options; returns them with --quick applied."""
    cli.check_ranges(options)
    if options.quick:
        options = replace(options, pops=(1024, 10240), repeats=3)
    if not options.pops:
        raise InputError("--pops is empty: at least one population is needed; try --pops 1024.")
    if options.picture and Path(options.picture).suffix not in plot.FORMATS:
        raise InputError(
            f"--picture {options.picture!r} does not end in {', '.join(plot.FORMATS)}: give it one "
            "of these."
        )
    for pop in options.pops:
        if pop < 2 or pop % 2 or pop > 1 << 24:
            raise InputError(
                f"--pops has {pop}: an even number from 2 to {1 << 24} is needed; try --pops 1024."
            )
    for name in ("json", "csv", "picture"):
        path = Path(getattr(options, name))
        if getattr(options, name) and (path.is_dir() or not path.parent.is_dir()):
            raise InputError(
                f"--{name} {str(path)!r} is no place for a file: give a file in a folder that is "
                "there."
            )
    return options
