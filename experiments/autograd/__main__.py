"""The autograd analysis here: `python -m experiments.autograd run|report|bench`

run trains digits by SGD and Adam on the tape and by evolution; bench times everything that has a
gate; report draws the pictures and writes the tables from their files. See RESULTS.md.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("experiments.autograd.__main__"))

import argparse
from pathlib import Path

from eggroll.cli import command as cli
from eggroll.files import make_folder
from experiments.arguments import check_no_run, new_file, positive
from experiments.autograd import bench, digits, report
from experiments.autograd.timing import CLOCKS


def run(args: argparse.Namespace) -> None:
    """Digits by every method and seed."""
    if args.smoke:
        args.seeds, args.updates, args.evolution_updates, args.look = 1, 60, 20, 10
    settings = digits.Settings(
        args.updates, args.evolution_updates, args.look, args.threads, CLOCKS[args.clock]
    )
    if args.out:
        check_no_run(make_folder(args.out), report.LOOKS)
    train, valid = digits.load()
    looks: list[digits.Look] = []
    for seed in range(args.seeds):
        for method, train_by in digits.METHODS.items():
            looks += train_by(method, seed, settings, train, valid)
    if args.out:
        report.write_looks(args.out, looks)
    print(report.run_table(looks))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="digits by SGD, Adam and evolution")
    one.add_argument("--seeds", type=positive, default=5)
    one.add_argument("--threads", type=positive, default=1)
    one.add_argument("--updates", type=positive, default=1500, help="of SGD and Adam")
    one.add_argument("--evolution-updates", type=positive, default=300)
    one.add_argument("--look", type=positive, default=20, help="updates between validations")
    one.add_argument("--smoke", action="store_true", help="one seed, few updates")
    one.add_argument("--out", type=Path, help="folder for looks.csv")
    two = commands.add_parser("report", help="pictures and tables from files")
    two.add_argument("folder", type=Path, help="of `run --out`")
    two.add_argument("--bench", type=Path, help="file of `bench --json`")
    three = commands.add_parser("bench", help="times, one thread on all sides")
    three.add_argument("--rounds", type=positive, default=9)
    three.add_argument("--steps", type=positive, default=5, help="of a case in a round")
    three.add_argument("--isa", help="of the native kernels; the fastest by default")
    three.add_argument("--compile", action="store_true", help="torch.compile, too (a minute)")
    three.add_argument("--json", type=new_file, help="file for the figures")
    for command in (one, three):
        command.add_argument(
            "--clock", choices=list(CLOCKS), default="wall",
            help="cpu: what one thread took of a machine that others use, too",
        )  # fmt: skip
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    args = parse(words)

    def work() -> int:
        if args.command == "run":
            run(args)
        elif args.command == "report":
            report.main(args.folder, args.bench)
        else:
            bench.main(args)
        return cli.DONE

    return cli.run(work)
