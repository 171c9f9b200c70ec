"""Chess evaluation (NNUE) by gradients, by integer credit and by evolution.

    python -m experiments.nnue run --data FILE --out FOLDER

run trains all ways in one process on the same batches; report writes tables and pictures from its
files; match plays games between its networks; bench times. See RESULTS.md.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np

from eggroll.errors import InputError, is_real, object_in, shown
from eggroll.files import make_folder, write_whole
from experiments.arguments import check_no_run, experiment, positive
from experiments.nnue import bench, data, loader_bench, match, pictures, report, training
from experiments.nnue.loader import FEATURES
from experiments.nnue.losses import SCALE, Loss, fitted_scale
from experiments.nnue.positions import Positions
from experiments.nnue.shape import Shape

USUAL = ("torch-coo", "torch-bag", "native", "feedback", "token-credit", "eggroll")
SMOKE = ("native", "feedback", "token-credit")
LOOKS, ABOUT = "looks.csv", "about.json"


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no budget: give seconds above 0.")
    return value


def run(args: argparse.Namespace) -> None:
    """All ways, for every feature set and seed."""
    if args.smoke:
        args.seconds, args.looks, args.seeds, args.batch = 1.0, 2, 1, min(args.batch, 1024)
        args.ways = args.ways or list(SMOKE)
    loss = Loss(args.cross_entropy, args.after, args.scale, args.weight, args.exponent).check()
    for way in args.ways or USUAL:
        training.chosen(way)
    if args.out:
        check_no_run(args.out, LOOKS)
        make_folder(args.out)
    looks: list[training.Look] = []
    about = {"variance": dict[str, float](), "words": sys.argv[1:]}
    for features in args.features:
        train = Positions.read(args.data, features, "train", args.batch)
        valid = Positions.read(args.data, features, "validation")
        about["variance"][features] = training.constant([valid.all], loss)
        for seed in range(args.seeds):
            settings = training.Settings(
                features, args.width, args.hidden, args.seconds, args.looks, seed, 1, loss
            )  # fmt: skip
            try:
                runs = training.run(args.ways or USUAL, settings, train, valid)
            except KeyboardInterrupt:
                has = f"{str(args.out)!r} has those before it" if args.out and looks else ""
                raise KeyboardInterrupt(
                    f"Interrupted in seed {seed} of {features}, of which nothing is kept; "
                    f"{has or 'no seed was written before it'}."
                ) from None
            looks += [look for one in runs.values() for look in one.looks]
            if args.out:
                training.write_looks(args.out / LOOKS, looks)
                write_whole(args.out / ABOUT, json.dumps(about, indent=1).encode())
                keep(args.out, runs, seed)
    print(report.table(looks, about["variance"]))


def keep(folder: Path, runs: dict[str, training.Run], seed: int) -> None:
    """Weights of native and integer ways, for matches: .npz or .safetensors."""
    for way, one in runs.items():
        name = f"{way}-{one.settings.features}-{seed}"
        if way.startswith("native"):
            shape = list(one.trainer.shape)
            file = io.BytesIO()
            np.savez(file, weights=one.trainer.weights, shape=shape)
            write_whole(folder / f"{name}.npz", file.getvalue())
        elif hasattr(one.trainer, "es"):
            one.trainer.es.save(folder / f"{name}.safetensors")


def read_variance(path: Path) -> dict[str, float]:
    """The squared error of the best constant, by feature set, of a run's about.json.

    Raises:
        InputError: it cannot be read, or has none.
    """
    try:
        found: dict[str, float] = object_in(path.read_bytes(), {"variance": dict})["variance"]
        for features, value in found.items():
            if not (is_real(value) and 0 <= value <= 1):
                raise ValueError(
                    f"has {shown(value)} as the variance of {shown(features)} where a number from "
                    "0 to 1 is needed"
                )
        return found
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})"
    except ValueError as error:
        wrong = str(error)
    raise InputError(f"{str(path)!r} {wrong}: give a folder of `run --out`.")


def make_report(args: argparse.Namespace) -> None:
    """Pictures and tables."""
    if args.folder:
        looks = training.read_looks(args.folder / LOOKS)
        variance = read_variance(args.folder / ABOUT)
    out = make_folder(args.out or args.folder or Path())
    pictures.loss_pictures(out)
    pictures.board_picture(out / "board_0.png")
    if args.data:
        batch = Positions.read(args.data, "768", "train").all
        fitted = fitted_scale(batch.score, batch.result)
        print(f"scale fitted to {len(batch.score):,} positions: {fitted:.0f} centipawns")
        pictures.fit_picture(out / "sigmoid_wdl_fit.png", batch, fitted)
    if args.folder:
        pictures.curves_picture(out / "curves.png", looks, variance)
        print(report.table(looks, variance))
        print("\n" + report.factoriser_table(looks))


def make_match(args: argparse.Namespace) -> None:
    """Every player against every other."""
    if len(args.players) < 2:
        raise InputError(f"one player, {args.players[0]!r}, has nobody to play: give two or more.")
    if args.seed < 0:
        raise InputError(f"--seed is {args.seed}: 0 or more is needed.")
    players = [player(word, args.net_folder) for word in args.players]
    for i, one in enumerate(players):
        for other in players[i + 1 :]:
            found = match.match(one, other, args.pairs, args.depth, args.seed, print)
            print(f"{one.name} - {other.name}, depth {args.depth}: {found.text()}")


def player(word: str, folder: Path) -> match.Player:
    """A player of a file of `run --out`, or of material.

    Raises:
        InputError: there is no such file, or it is no network that plays.
    """
    if word == "material":
        return match.material()
    path = Path(word.removesuffix(":int8"))
    try:
        if path.suffix == ".npz":
            with np.load(path) as file:
                flat, shape = file["weights"], Shape(*file["shape"].tolist())
            return match.of_float(path.stem, flat, shape, folder, int8=word.endswith(":int8"))
        return match.of_checkpoint(path, folder)
    except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{word!r} is no player ({error}): give material, or a file of `run --out`, .npz (with "
            ":int8 behind it for its quantised form) or .safetensors."
        ) from None


def make_bench(args: argparse.Namespace) -> None:
    if args.loader:
        print("\n".join(loader_bench.run(args.data, args.rounds, 1, args.json)))
        return
    if not args.data:
        raise InputError("--data is missing: name a pack; `data --out` makes one.")
    print(bench.main(args.data, args.rounds, args.batch, args.widths, args.json, args.net_folder))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="experiments.nnue", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("data", help="positions: games of self-play, or another program's file")
    one = commands.add_parser("run", help="all ways of training, in turns, on the same batches")
    one.add_argument("--data", type=Path, required=True, help="file of positions")
    one.add_argument("--features", nargs="+", default=["768"], choices=list(FEATURES))
    one.add_argument("--ways", nargs="+", help=f"of {', '.join(training.WAYS)}; @RATE behind one")
    one.add_argument("--seconds", type=seconds, default=30.0, help="CPU seconds of every way")
    one.add_argument("--seeds", type=positive, default=1)
    one.add_argument("--looks", type=positive, default=20, help="validations of a run")
    one.add_argument("--batch", type=positive, default=8192, help="positions of an update")
    one.add_argument("--width", type=positive, default=32, help="of an accumulator")
    one.add_argument("--hidden", type=positive, default=16, help="units of the hidden layer")
    one.add_argument("--scale", type=float, default=SCALE, help="centipawns of a logit of 1")
    one.add_argument(
        "--lambda", dest="weight", type=float, default=1.0,
        help="weight of the score against the game's result",
    )  # fmt: skip
    one.add_argument("--after", action="store_true", help="blend losses, not targets")
    one.add_argument("--cross-entropy", action="store_true", help="of float ways: that loss")
    one.add_argument("--exponent", type=float, default=2.0, help="of |p - t|, float ways")
    one.add_argument("--smoke", action="store_true", help="a second for each of three ways")
    one.add_argument("--out", type=Path, help="folder for looks, weights and what was run")
    one.set_defaults(call=run)
    two = commands.add_parser("report", help="pictures and tables from files")
    two.add_argument("folder", type=Path, nargs="?", help="of `run --out`")
    two.add_argument("--data", type=Path, help="file of positions, for the scale's fit")
    two.add_argument("--out", type=Path, help="folder for the pictures")
    two.set_defaults(call=make_report)
    three = commands.add_parser("match", help="games of a fixed depth between networks")
    three.add_argument("players", nargs="+", help="material, or files of `run --out`")
    three.add_argument("--pairs", type=positive, default=100, help="openings, played twice")
    three.add_argument("--depth", type=positive, default=3, help="plies before captures")
    three.add_argument("--seed", type=int, default=0)
    three.set_defaults(call=make_match)
    four = commands.add_parser("bench", help="times, one thread on all sides")
    four.add_argument("--data", type=Path, help="file of positions")
    four.add_argument("--loader", action="store_true", help="the loader in place of trainers")
    four.add_argument("--rounds", type=positive, default=7)
    four.add_argument("--batch", type=positive, default=8192)
    four.add_argument("--widths", type=positive, nargs="+", default=[32, 256])
    four.add_argument("--json", type=Path, help="file for the figures")
    four.set_defaults(call=make_bench)
    for command in (three, four):
        command.add_argument(
            "--net-folder", type=Path, default=Path("build/nnue"), help="for exported networks"
        )
    return parser.parse_args(words)


@experiment
def main(words: list[str] | None = None) -> None:
    given = sys.argv[1:] if words is None else words
    if given[:1] == ["data"]:
        data.data_command(given[1:])
    else:
        args = parse(given)
        args.call(args)
