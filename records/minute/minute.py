"""Records of a minute on two cores: makes a row, checks one, prints the table.

    python records/minute/minute.py run --name "errors carried back" -- \\
        python -m eggroll.train --recipe text
    python records/minute/minute.py check 1
    python records/minute/minute.py table

`run` times the whole command by the wall, with nothing in the cache, keeps its output in logs/ and
adds a row to rows.jsonl if it took no more than a minute.
`check` runs a row's command again in a folder of its own and compares: of integers the signature
must be the same, of floats both figures are shown. README.md says what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS, LOGS = HERE / "rows.jsonl", HERE / "logs"
ROOT = HERE.parents[1]
MINUTE = 60.0
HEADS = ("", "bits per byte", "with counts", "wall s", "method", "command", "commit", "signature",
         "machine", "date", "log")  # fmt: skip
Row = dict[str, Any]


def measure(words: list[str]) -> tuple[Row, str]:
    """Runs a command in an empty folder; what its output says, and the output.

    Raises:
        ValueError: it fails, or says no validation.
    """
    own = [sys.executable, *words[1:]] if words[0] in ("python", "python3") else words
    # Modules of this checkout, wherever the command runs.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "EGGROLL_CACHE": cache}
        start = time.perf_counter()
        ended = subprocess.run(
            own, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        wall = time.perf_counter() - start
        text = text_of_run(Path(folder))
    if ended.returncode:
        raise ValueError(f"the command ended with code {ended.returncode}:\n{ended.stdout}")
    output = ended.stdout.replace(sys.executable, "python")
    return {"wall_seconds": round(wall, 1), **said(output), "text": text}, output


def said(output: str) -> Row:
    """The figures in a command's output: the last validation, the one with counts, the signature.

    Raises:
        ValueError: there is no validation.
    """
    lines = re.findall(r"^validation: .*$", output, re.M)
    both = re.search(r"^with its counted expert: .*$", output, re.M)
    signature = re.search(r"^signature: ([0-9a-f]{64})$", output, re.M)
    if not lines or (bits := per_byte(lines[-1])) is None:
        raise ValueError(f"the output says no `validation: X bits per byte`:\n{output}")
    return {
        "bits_per_byte": bits,
        "with_counts": per_byte(both.group()) if both else None,
        "signature": signature.group(1) if signature else "",
    }


def per_byte(line: str) -> float | None:
    """The bits per byte in a line, of bytes or of other tokens."""
    found = re.search(r"([\d.]+) per byte", line) or re.search(r"([\d.]+) bits(?: per byte)?", line)
    return float(found.group(1)) if found else None


def text_of_run(folder: Path) -> str:
    """The digests of a run's splits, by which two machines' texts compare; empty if not known."""
    for path in folder.rglob("config.json"):
        corpus = json.loads(path.read_text()).get("about", {}).get("corpus", {})
        splits = corpus.get("splits", {})
        return " ".join(f"{k} {v['sha256'][:12]}" for k, v in splits.items())
    return ""


def machine() -> str:
    """The processor's name and generation and the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    name = platform.processor() or platform.machine()
    path = Path("/proc/cpuinfo")
    facts = path.read_text() if path.exists() else ""
    if found := re.search(r"model name\s*: (.*)", facts):
        name = found.group(1)
        family = re.findall(r"^(cpu family|model)\s*: (\d+)", facts, re.M)[:2]
        name += f" ({', '.join(f'{what} {number}' for what, number in family)})" * bool(family)
    return f"{name}, {cores} cores"


def commit() -> str:
    """The commit of this checkout, with a plus sign where files have changed since.

    Raises:
        ValueError: this is no git checkout.
    """

    def git(*words: str) -> str:
        asked = ["git", "-C", str(ROOT), *words]
        ended = subprocess.run(asked, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise ValueError("a row names its commit: run this in a git checkout.")
        return ended.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=9", "HEAD") + "+" * bool(changed)


def rows() -> list[Row]:
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    return [json.loads(line) for line in lines]


def add(name: str, words: list[str]) -> int:
    """Makes a row of a command."""
    now, found = datetime.now(UTC), commit()
    row, output = measure(words)
    if row["wall_seconds"] > MINUTE:
        raise ValueError(f"it took {row['wall_seconds']} s, more than a minute: it is no record.")
    log = LOGS / f"{now:%Y-%m-%d-%H%M%S}.txt"
    LOGS.mkdir(exist_ok=True)
    log.write_text(output)
    made = {"name": name, "command": shlex.join(words), **row, "commit": found,
            "machine": machine(), "date": f"{now:%Y-%m-%d}", "log": log.name}  # fmt: skip
    with ROWS.open("a") as file:
        file.write(json.dumps(made) + "\n")
    print(table([made]))
    return 0


def check(number: int) -> int:
    """Runs the command of a row again; 0 if it gives what the row says."""
    known = rows()
    if not 1 <= number <= len(known):
        raise ValueError(f"there is no row {number}: rows are 1 to {len(known)}.")
    row = known[number - 1]
    found, _ = measure(shlex.split(row["command"]))
    for what in ("bits_per_byte", "with_counts", "signature", "wall_seconds"):
        print(f"{what}: {found[what]} here, {row[what]} in row {number}")
    if found["text"] != row["text"]:
        print(
            f"The text here is another ({found['text']}, in the row {row['text']}), as that of "
            "another Python's standard library is: nothing can be compared."
        )
        return 1
    if not row["signature"]:
        print("Floats have no signature: look at the two figures.")
        return 0
    exact = ("bits_per_byte", "with_counts", "signature")
    same = all(found[what] == row[what] for what in exact)
    print("The row's command gives the row." if same else "The row's command gives something else.")
    return 0 if same else 1


def table(some: list[Row]) -> str:
    """Rows as Markdown, the lowest bits first, with the number that `check` takes."""

    def best(row: Row) -> float:
        return min(row["bits_per_byte"], row["with_counts"] or row["bits_per_byte"])

    numbered = sorted(enumerate(some, 1), key=lambda each: best(each[1]))
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for number, row in numbered:
        both = f"{row['with_counts']:.3f}" if row["with_counts"] else ""
        cells = (number, f"{row['bits_per_byte']:.3f}", both, row["wall_seconds"], row["name"],
                 f"`{row['command']}`", row["commit"], row["signature"][:16] or "floats",
                 row["machine"], row["date"], f"[log](logs/{row['log']})")  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    making = parts.add_parser("run", help="run a command and add its row")
    making.add_argument("--name", required=True, help="the method in a few words")
    making.add_argument("words", nargs="+", metavar="COMMAND", help="after --: the command")
    parts.add_parser("check", help="run a row's command again").add_argument("row", type=int)
    parts.add_parser("table", help="print all rows")
    args = parser.parse_args()
    try:
        if args.part == "run":
            return add(args.name, args.words)
        if args.part == "check":
            return check(args.row)
        print(table(rows()))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
