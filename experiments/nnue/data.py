"""Data for the trainers: `python -m experiments.nnue data`

Games of self-play become a pack (--out), another program's file becomes one (--read), or every
record of a pack is checked (--check).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from eggroll.errors import InputError
from eggroll.files import check_place
from experiments.nnue import formats, material
from experiments.nnue.games import Rules, generate
from experiments.nnue.pack import is_pack, read_pack, write_pack

SMALL = Path(__file__).parent / "small.bin"  # a pack of 4,096 positions, for tests
POSITIONS = 1_000_000
LONGEST_OPENING = 200  # random plies


def data_command(words: list[str]) -> None:
    """Makes, converts or checks a pack.

    Raises:
        InputError: an option is out of range, a file is bad, or a program or package is missing.
    """
    args = parser().parse_args(words)
    for name in ("positions", "nodes", "processes"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name} is {getattr(args, name)}: at least 1 is needed.")
    for name in ("opening", "seed"):
        if getattr(args, name) < 0:
            raise InputError(f"--{name} is {getattr(args, name)}: at least 0 is needed.")
    if args.opening > LONGEST_OPENING:
        raise InputError(
            f"--opening is {args.opening}: few games last so many random plies; 0 to "
            f"{LONGEST_OPENING} is needed."
        )
    if args.check:
        _check(args.check)
    elif not args.out:
        raise InputError("--out is missing: name the pack to write, or one to --check.")
    else:
        check_place("--out", str(args.out))
        _convert(args) if args.read else _play(args)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m experiments.nnue data", description=__doc__.splitlines()[0]
    )
    found.add_argument("--out", type=Path, help="the pack to write")
    found.add_argument("--positions", type=int, default=POSITIONS, help="quiet positions to keep")
    found.add_argument(
        "--player", choices=["stockfish", "material"], default="stockfish",
        help="material: the built-in evaluation, for want of stockfish",
    )  # fmt: skip
    found.add_argument("--nodes", type=int, default=Rules.nodes, help="of stockfish's searches")
    found.add_argument(
        "--opening", type=int, default=Rules.opening, help="random plies, or one more"
    )
    found.add_argument("--seed", type=int, default=Rules.seed)
    found.add_argument("--processes", type=int, default=2, help="they change the speed alone")
    found.add_argument(
        "--read",
        type=Path,
        help="a file to convert instead: Stockfish's plain or binpack, or bullet's",
    )
    found.add_argument(
        "--format", choices=list(formats.READERS), help="of that file; told by its bytes otherwise"
    )
    found.add_argument(
        "--relabel", action="store_true",
        help="scores of --read, which may be a pack, by the built-in evaluation",
    )  # fmt: skip
    found.add_argument("--check", type=Path, help="a pack of which to check every record")
    return found


def _play(args: argparse.Namespace) -> None:
    rules = Rules(args.player, args.nodes, args.opening, args.seed)
    began, shown = time.monotonic(), 0

    def say(there: int) -> None:
        nonlocal shown
        if (tenth := 10 * there // args.positions) > shown:
            shown = tenth
            print(f"{there:,} positions in {time.monotonic() - began:.0f} s", flush=True)

    found = generate(rules, args.positions, args.processes, say)
    formats.check(args.out, found.records)
    about = {
        "source": "self-play from random openings", "player": found.name, "seed": args.seed,
        "opening": args.opening, "score": "of the player, centipawns from the side to move",
        "kept": "quiet positions",
    }  # fmt: skip
    if args.player == "stockfish":
        about["nodes"] = args.nodes
    write_pack(args.out, found.records, about)
    print(sentence(args.out))


def _convert(args: argparse.Namespace) -> None:
    if is_pack(args.read):
        if not args.relabel:
            raise InputError(f"{str(args.read)!r} is a pack already: give it to --check.")
        pack = read_pack(args.read)
        records, about = np.array(pack.records), dict(pack.about)
        formats.check(args.read, records)
    else:
        records, about = formats.read_foreign(args.read, args.format)
    if args.relabel:
        records["score"] = material.evaluate(records)
        about["score"] = "material and squares, centipawns from the side to move"
    write_pack(args.out, records, about)
    print(sentence(args.out))


def _check(path: Path) -> None:
    pack = read_pack(path)
    formats.check(path, np.array(pack.records))
    print(sentence(path))


def sentence(path: Path) -> str:
    """What a pack has, in a line."""
    pack = read_pack(path)
    games = len(np.unique(pack.records["game"]))
    results = [int((pack.records["result"] == each).sum()) for each in (1, 0, -1)]
    about = ", ".join(f"{name}: {value}" for name, value in pack.about.items())
    return (
        f"{path}: {len(pack.records):,} positions of {games:,} games; the side to move won, drew, "
        f"lost {results[0]:,}, {results[1]:,}, {results[2]:,}; {about}"
    )
