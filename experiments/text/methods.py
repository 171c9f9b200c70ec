"""All methods in the same minute: `python experiments/text/methods.py pace`, then `run --seeds 5`

A minute is that of a whole command: its start, the coding of the text, training, validation,
samples and pictures all count. `pace` times a short pilot of each method, which an idle machine
needs, and writes how many updates the minute has room for into methods.json of the current folder.
`run` makes so many, or where there is no such file those of the record beside this script, on any
machine and beside other work, since weights depend on the number of updates alone. It adds a row
for each run to methods.csv of the current folder, where a stopped table goes on. `draw` makes the
picture of these rows, or of the record's: methods as dots, models that only count as lines.
--settings FILE.json compares other commands, {"a name": ["--recipe", "text", "--width", "96"]}, and
--seconds of `pace` other times than a minute.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eggroll.cli import command as cli
from eggroll.errors import InputError, is_whole, object_in, shown
from eggroll.files import METRICS, open_regular, write_whole
from eggroll.training import folder as runlog
from eggroll.training.config import RECIPES

sys.path.append(str(Path(__file__).parents[2]))  # for scripts, where it is not installed
from experiments.arguments import above_0, new_file, new_picture, positive, whole

HERE = Path(__file__).parent
TRAIN = ("-m", "eggroll.train")
PAIRS = ("--vocabulary", "4096")
COUNTS = ("--expert", "counts")
# A method's command, but for --data, --seed, --out and --steps.
METHODS: dict[str, Sequence[str]] = {
    "evolution, the paper's rule, bytes": TRAIN,
    "evolution, the paper's rule": (*TRAIN, *PAIRS),
    "evolution, no own error for the last layer": (
        *TRAIN, "--recipe", "evolution", "--estimator", "token-votes",
    ),
    "evolution (recipe language), bytes": (*TRAIN, "--recipe", "language"),
    "evolution in groups of 8": (
        *TRAIN, "--recipe", "evolution", "--estimator", "group-credit", "--group-size", "8",
    ),
    "evolution (recipe evolution)": (*TRAIN, "--recipe", "evolution", *COUNTS),
    "evolution, the core frozen": (str(HERE / "frozen.py"),),
    "errors to every block (local)": (*TRAIN, "--recipe", "text", "--estimator", "local"),
    "errors carried back, bytes": (
        *TRAIN, "--recipe", "feedback", "--width", "128", "--layers", "2",
    ),
    "errors carried back (recipe text)": (*TRAIN, "--recipe", "text"),
    "float: AdamW, evolution's network, bytes": (
        "-m", "eggroll.adamw", "--streams", "256", "--learning-rate", "0.1",
    ),
    "float: AdamW, evolution's network": (
        "-m", "eggroll.adamw", *PAIRS, *COUNTS, "--learning-rate", "0.14",
    ),
    "float: PyTorch GRU, AdamW, bytes": (
        str(HERE / "peers.py"), "run", "--vocabulary", "256",
        "gru:rate=0.00577,width=160,streams=48,seq_len=32,weight_decay=0.1,tied=0",
    ),
    "float: PyTorch GRU, AdamW": (
        str(HERE / "peers.py"), "run",
        "gru:rate=0.00345,width=96,streams=64,seq_len=16,weight_decay=0.0,tied=0", *COUNTS,
    ),
}  # fmt: skip
# Recipes make the updates that they have as typed.
AS_TYPED = {
    "errors carried back (recipe text)": RECIPES["text"]["steps"],
    "evolution (recipe evolution)": RECIPES["evolution"]["steps"],
}
PILOT = 60  # updates of a pilot
SPARE = 0.88  # the share of the time that updates are planned for: a pilot is faster, and logs grow
OF_SCRIPT = re.compile(r"updates of ([\d.]+) ms")
COUNTED = re.compile(
    r"^ +([\d.]+) an? (.*) model counted on the training split(?:, ([\d.]+) per byte)?", re.M
)
NAMES = ["method", "data", "seed", "steps", "bits_per_byte", "with_counts", "seconds", "commit"]


def command(method: str, data: str, seed: int, updates: int, out: str) -> list[str]:
    words = [sys.executable, *METHODS[method], "--data", data, "--seed", str(seed)]
    if is_script(method):
        return [*words, "--updates", str(updates)]
    return [*words, "--steps", str(updates), "--out", out]


def is_script(method: str) -> bool:
    """One of this folder's, which takes its updates by another word and writes no run."""
    return METHODS[method][0].endswith(".py")


def call(words: list[str]) -> tuple[str, float]:
    """A command's output and the seconds that it took by the wall, with nothing in the cache.

    Raises:
        InputError: it fails.
    """
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "EGGROLL_CACHE": cache}
        ended = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if ended.returncode:
        raise InputError(f"{' '.join(words)} ended with {ended.returncode}: {ended.stderr[-500:]}")
    return ended.stdout, time.perf_counter() - start


def updates_within(method: str, data: str, seconds: float) -> float:
    """Updates that a whole command of so many seconds has room for."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/pilot"
        output, wall = call(command(method, data, 0, PILOT, out))
        if is_script(method):
            taken = [float(OF_SCRIPT.findall(output)[0]) / 1e3] * PILOT
        else:
            taken = [row["seconds"] for _, row in runlog.read_lines(Path(out) / METRICS)]
    update = statistics.median(taken[3:])
    return max(1, SPARE * (seconds - (wall - sum(taken))) / update)


def figures(output: str) -> tuple[float, float | None]:
    """Bits per byte of the last validation, and with counts where the run has them."""
    last = re.findall(r"^validation: .*$", output, re.M)[-1]
    both = re.search(r"^with its counted expert: .*$", output, re.M)
    return per_byte(last), per_byte(both.group()) if both else None


def per_byte(line: str) -> float:
    found = re.search(r"([\d.]+) per byte", line) or re.search(r"([\d.]+) bits", line)
    assert found, line
    return float(found.group(1))


def commit() -> str:
    """The first figures of the commit that runs; + where files differ from it."""
    asked = ("git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*")
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def rows_in(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, Any]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, NAMES)
        if new:
            writer.writeheader()
        writer.writerow(row)


def object_of(flag: str, path: Path) -> dict[str, Any]:
    """The object that a JSON file of an option has.

    Raises:
        InputError: it cannot be read, or has none.
    """
    try:
        with open_regular(path) as file:
            return object_in(file.read())
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except ValueError as error:
        reason = str(error)
    raise InputError(f"{flag} {str(path)!r} {reason}: give a JSON file of methods.") from None


def paced(path: Path) -> dict[str, int]:
    """The updates of methods that `pace` wrote.

    Raises:
        InputError: it cannot be read, or has others.
    """
    found = object_of("--pace", path)
    for name, value in found.items():
        if not is_whole(value) or value < 1:
            raise InputError(
                f"--pace {str(path)!r} has {shown(value)} for {name!r}: updates, 1 or more, are "
                "needed; `methods.py pace` writes them."
            )
    return found


def pace(args: argparse.Namespace) -> None:
    """The median of pilots in turn, for each method: updates."""
    known = paced(args.pace) if args.pace.exists() else {}
    found: dict[str, list[float]] = {}
    for turn in range(args.turns):
        for method in args.methods or METHODS:
            updates = updates_within(method, args.data, args.seconds)
            found.setdefault(method, []).append(updates)
            print(f"{method}, turn {turn}: {updates:.0f}", flush=True)
    new = {m: AS_TYPED.get(m, int(statistics.median(each))) for m, each in found.items()}
    write_whole(args.pace, json.dumps(known | new, indent=1).encode() + b"\n")
    print(f"written: {args.pace}")


def run(args: argparse.Namespace) -> None:
    """All methods, seed after seed; rows that the file has are not run again."""
    if not args.pace.exists():
        raise InputError(f"{args.pace} is missing: `methods.py pace` writes it on an idle machine.")
    updates = paced(args.pace)
    if unknown := [name for name in args.methods or () if name not in updates]:
        raise InputError(
            f"{str(args.pace)!r} has no {unknown[0]!r}: time it by `methods.py pace --methods`."
        )
    for seed in range(args.seeds):
        for method in args.methods or [name for name in METHODS if name in updates]:
            if any((row["method"], row["data"], row["seed"]) == (method, args.data, str(seed))
                   for row in rows_in(args.csv)):  # fmt: skip
                continue
            with tempfile.TemporaryDirectory() as folder:
                words = command(method, args.data, seed, updates[method], f"{folder}/run")
                if args.threads:
                    words += ["--threads", str(args.threads)]
                output, wall = call(words)
            bits, both = figures(output)
            append(args.csv, {
                "method": method, "data": args.data, "seed": seed,
                "steps": updates[method],
                "bits_per_byte": bits, "with_counts": "" if both is None else both,
                "seconds": round(wall, 1) if args.idle else "", "commit": commit(),
            })  # fmt: skip
            for of_bytes, model, of_pairs in COUNTED.findall(output):
                key = (f"counted: {model}{'' if of_pairs else ', bytes'}", args.data)
                if key not in [(row["method"], row["data"]) for row in rows_in(args.csv)]:
                    append(args.csv, {"method": key[0], "data": args.data,
                                      "bits_per_byte": of_pairs or of_bytes})  # fmt: skip
            print(f"{method}, seed {seed}: {bits} ({both}) in {wall:.1f} s", flush=True)
    print(table(rows_in(args.csv), args.data))


def summaries(rows: list[dict[str, str]], data: str) -> list[tuple[str, list[float], str]]:
    """(method, bits of all seeds, updates) of a text, the lowest mean first; counts apart."""
    found: dict[str, tuple[list[float], str]] = {}
    for row in rows:
        if row["data"] == data:
            for name, bits in ((row["method"], row["bits_per_byte"]),
                               (f"{row['method']}, with counts", row["with_counts"])):  # fmt: skip
                if bits:
                    found.setdefault(name, ([], row["steps"]))[0].append(float(bits))
    return sorted(
        ((name, bits, steps) for name, (bits, steps) in found.items()),
        key=lambda each: statistics.mean(each[1]),
    )


def table(rows: list[dict[str, str]], data: str) -> str:
    lines = ["| method | updates | bits per byte: mean (range) | seeds |", "|---|---|---|---|"]
    for name, bits, steps in summaries(rows, data):
        spread = f" ({min(bits):.3f} to {max(bits):.3f})" * (len(bits) > 1)
        seeds = "" if name.startswith("counted") else str(len(bits))
        lines.append(f"| {name} | {steps} | {statistics.mean(bits):.3f}{spread} | {seeds} |")
    return "\n".join(lines)


def draw(args: argparse.Namespace) -> None:
    """The picture: a dot for every seed, a line for every model that only counts."""
    from matplotlib.figure import Figure

    kinds = summaries(rows_in(args.csv), args.data)
    methods = [k for k in kinds if not k[0].startswith("counted")][::-1]
    figure = Figure((8.4, 0.6 + 0.42 * len(methods)), layout="constrained")
    axes = figure.add_subplot()
    for place, (name, bits, _) in enumerate(methods):
        colour = "tab:green" if name.startswith("float") else (
            "tab:blue" if name.startswith("evolution") else "tab:orange")  # fmt: skip
        axes.plot(bits, [place] * len(bits), "o", color=colour, alpha=0.7)
        axes.annotate(f"{statistics.mean(bits):.2f}", (max(bits), place), (7, 0),
                      textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    low = min(min(bits) for _, bits, _ in methods)
    high = max(max(bits) for _, bits, _ in methods)
    for name, bits, _ in kinds:
        if name.startswith("counted") and bits[0] <= high + 0.3:
            axes.axvline(bits[0], color="0.5", linestyle="--", linewidth=1, zorder=0)
            top = bits[0] > (low + high) / 2  # where no method's figures are
            label = name.removeprefix("counted: ").removeprefix("frozen ").replace("order-", "")
            axes.annotate(label, (bits[0], top), (2, -2 if top else 3), fontsize=8,
                          xycoords=("data", "axes fraction"), rotation=90, color="0.35",
                          textcoords="offset points", va="top" if top else "bottom")  # fmt: skip
    axes.set_yticks(range(len(methods)), [name for name, _, _ in methods])
    axes.set_xlim(low - 0.1, high + 0.35)
    axes.set_xlabel("bits per byte of validation text, lower is better")
    axes.set_title("One minute by the wall on two cores, whole commands", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(args.out)
    print(f"written: {args.out}")


def own_or_record(file: Path) -> Path:
    """A file of the current folder, or where there is none that of the record."""
    return file if file.exists() else HERE / file


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    pacing = parts.add_parser("pace", help="time pilots on an idle machine")
    pacing.add_argument("--seconds", type=above_0, default=60.0, help="of a whole command")
    pacing.add_argument("--turns", type=positive, default=3, help="pilots of each method")
    running = parts.add_parser("run", help="train all methods and print the table")
    running.add_argument("--seeds", type=positive, default=5)
    running.add_argument(
        "--threads", type=whole(0, 1024), default=0, help="of training, if not a method's own"
    )
    running.add_argument("--idle", action="store_true", help="the machine is: seconds are kept")
    drawing = parts.add_parser("draw", help="make the picture of a CSV")
    drawing.add_argument("--out", type=new_picture, default=Path("methods.svg"))
    tabling = parts.add_parser("table", help="print the table of a CSV")
    for part in (pacing, running):
        part.add_argument("--methods", nargs="+", metavar="METHOD", help="of all, these")
        part.add_argument("--settings", type=Path, metavar="FILE.json", help="other commands")
    pilots, rows = Path("methods.json"), Path("methods.csv")
    pacing.add_argument("--pace", type=new_file, default=pilots, help="the pilots")
    running.add_argument("--pace", type=Path, default=own_or_record(pilots), help="the pilots")
    running.add_argument("--csv", type=new_file, default=rows, help="a row per run")
    for part in (drawing, tabling):
        part.add_argument("--csv", type=Path, default=own_or_record(rows), help="a row per run")
    for part in (pacing, running, drawing, tabling):
        part.add_argument("--data", default="stdlib")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if getattr(args, "settings", None):
        given = object_of("--settings", args.settings)
        METHODS.clear()
        for name, words in given.items():
            if not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
                raise InputError(
                    f"--settings has {shown(words)} for {name!r}: give the words of a command, "
                    'such as ["--width", "96"].'
                )
            if words[0].endswith(".py"):
                METHODS[name] = (str(HERE / words[0]), *words[1:])
            else:
                METHODS[name] = words if words[0] == "-m" else (*TRAIN, *words)
    if unknown := [m for m in getattr(args, "methods", None) or () if m not in METHODS]:
        raise InputError(f"{unknown[0]!r} is no method: {', '.join(METHODS)}.")
    if args.part == "pace":
        pace(args)
    elif args.part == "run":
        run(args)
    elif args.part == "draw":
        draw(args)
    else:
        print(table(rows_in(args.csv), args.data))
    return cli.DONE


if __name__ == "__main__":
    sys.exit(cli.run(main))
