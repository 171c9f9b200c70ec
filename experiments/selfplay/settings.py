"""Settings of a self-play run, each declared once: its option, its default, what it is."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from eggroll.errors import InputError, shown
from eggroll.files import make_folder, write_whole
from experiments.selfplay.games import find
from experiments.selfplay.search import Search

LEARNERS = ("feedback", "token-credit", "adam")
REWARDS = ("terminal", "document", "mended")
CONFIG = "config.json"


class Option(NamedTuple):
    """What a setting is, and what it may be.

    least, most: of a number, inclusive; choices: of a text.
    """

    help: str
    least: float = 0
    most: float = 1 << 30
    choices: tuple[str, ...] = ()


def option(default: Any, help: str, *bounds: float, choices: tuple[str, ...] = ()) -> Any:
    """A field of Settings; bounds: the least number, and the largest."""
    return field(default=default, metadata={"option": Option(help, *bounds, choices=choices)})


@dataclass(frozen=True)
class Settings:
    """Of a run; with them and the seed everything that a run computes is settled."""

    game: str = option("tictactoe", "the game", choices=("tictactoe", "connect4", "liuzhou"))
    learner: str = option("feedback", "how the network learns", choices=LEARNERS)
    reward: str = option("terminal", "what the value learns, see rewards.py", choices=REWARDS)
    seed: int = option(0, "of weights, games and batches", 0, (1 << 31) - 1)
    iterations: int = option(200, "rounds of self-play, training and evaluation", 1)
    games: int = option(512, "games of an iteration", 1)
    chunk: int = option(128, "games that a worker plays side by side, its unit of work", 1)
    simulations: int = option(64, "of the search before every move", 1, 65535)
    depth: int = option(1, "plies that a search looks ahead; 1 is root-PUCT", 1, 1 << 20)
    leaves: int = option(1, "walks of a deeper search in a round", 1, 4096)
    reuse: int = option(0, "1 keeps the subtree of the move that was played", 0, 1)
    gumbel: int = option(0, "actions that a Gumbel root considers, 0 for PUCT", 0, 256)
    temperature_plies: int = option(9, "moves of a game that are drawn from the visits", 0)
    noise: float = option(0.25, "share of Dirichlet noise in the priors of the root", 0, 1)
    bootstrap: float = option(0.0, "share of the search's value in what the value learns", 0, 1)
    hidden: str = option("128,128", "units of the hidden layers")
    window: int = option(20, "iterations whose games are learnt from", 1)
    updates: int = option(64, "updates of an iteration", 1)
    batch: int = option(512, "positions of an update", 64)
    rate: float = option(0.0, "learning rate; 0 takes the learner's own", 0, 64)
    symmetries: int = option(1, "1 shows positions turned and mirrored, 0 as they were", 0, 1)
    eval_games: int = option(200, "games of an evaluation against each opponent", 2)
    long_search: int = option(
        0, "simulations of one more match with alpha-beta, 0 for none", 0, 65535
    )
    eval_every: int = option(10, "iterations from one evaluation to the next", 1)

    def __post_init__(self) -> None:
        for item in fields(self):
            check(item.name, getattr(self, item.name), item.metadata["option"])
        if self.learner == "token-credit" and self.batch % 64:
            raise InputError(
                f"--batch is {self.batch}: learner token-credit needs a multiple of 64, its pairs."
            )
        self.layers  # noqa: B018
        self.search().check(find(self.game).longest)

    def search(self, noise: float = 0.0) -> Search:
        """The search of a run's moves, with Dirichlet noise where it plays to learn."""
        return Search(
            self.simulations, self.depth, noise=0.0 if self.gumbel else noise, leaves=self.leaves,
            reuse=bool(self.reuse), gumbel=self.gumbel,
        )  # fmt: skip

    @property
    def layers(self) -> list[int]:
        """Units of the hidden layers."""
        try:
            found = [int(word) for word in self.hidden.split(",")]
        except ValueError:
            found = []
        if not found or min(found) < 1 or max(found) > 4096:
            raise InputError(
                f"--hidden is {shown(self.hidden)}: give 1 to 4096 units a layer, such as 128,128."
            )
        return found

    @property
    def total_updates(self) -> int:
        """Updates of the whole run, over which the learning rate falls."""
        return self.iterations * self.updates


# What differs from the defaults in other games.
PRESETS: dict[str, dict[str, Any]] = {
    "tictactoe": {},
    "connect4": {"hidden": "256,256", "depth": 42, "temperature_plies": 12, "iterations": 240,
                 "games": 4096, "chunk": 512, "window": 10, "updates": 400, "batch": 1024,
                 "eval_every": 24, "long_search": 1024},
    "liuzhou": {"hidden": "256,256", "temperature_plies": 40, "iterations": 40, "games": 256,
                "window": 8, "updates": 64, "batch": 1024, "eval_games": 100},
}  # fmt: skip


def new(named: dict[str, Any]) -> Settings:
    """The settings of a new run: those named, else its game's."""
    game = named.get("game", "tictactoe")
    return Settings(**{**PRESETS.get(game, {}), **named})


def check(name: str, value: Any, what: Option) -> None:
    """Raises InputError for a setting that is out of range."""
    flag = f"--{name.replace('_', '-')}"
    if what.choices and value not in what.choices:
        raise InputError(f"{flag} is {shown(value)}: choose one of {', '.join(what.choices)}.")
    if isinstance(value, int | float) and not what.least <= value <= what.most:
        raise InputError(f"{flag} is {value}: {what.least:g} to {what.most:g} is allowed.")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The settings as options of a command; those left out are None."""
    group = parser.add_argument_group(
        "settings", "of a new run; a run that has begun keeps those in its config.json"
    )
    for item in fields(Settings):
        what: Option = item.metadata["option"]
        group.add_argument(
            f"--{item.name.replace('_', '-')}", type=type(item.default), default=None,
            choices=what.choices or None, help=f"{what.help} ({defaults(item.name)})",
        )  # fmt: skip


def defaults(name: str) -> str:
    """The defaults of a setting, where games differ those of each."""
    found = {game: getattr(new({"game": game}), name) for game in PRESETS}
    if name == "game" or len({*found.values()}) == 1:
        return str(getattr(Settings(), name))
    return ", ".join(f"{game} {value}" for game, value in found.items())


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that a command line names."""
    values = {item.name: getattr(args, item.name, None) for item in fields(Settings)}
    return {name: value for name, value in values.items() if value is not None}


def settle(folder: Path, named: dict[str, Any]) -> Settings:
    """The settings of a run's folder; a new folder gets those named, and defaults.

    Raises:
        InputError: the folder has others, or its file is none of these.
    """
    path = folder / CONFIG
    if not path.exists():
        made = new(named)
        names = (one.name for one in make_folder(folder).iterdir())
        if other := next((name for name in names if not name.startswith(".")), ""):
            raise InputError(f"{str(folder)!r} holds {other!r} and no run: name a new folder.")
        write_whole(path, json.dumps(asdict(made), indent=1).encode() + b"\n")
        return made
    known = read(folder)
    for name, value in named.items():
        if getattr(known, name) != value:
            raise InputError(
                f"--{name.replace('_', '-')} is {value}, but {str(path)!r} has "
                f"{getattr(known, name)}: leave it out, or name a new folder."
            )
    return known


def read(folder: Path) -> Settings:
    """The settings of a run that has begun.

    Raises:
        InputError: there is none, or its file is damaged.
    """
    path = folder / CONFIG
    try:
        return Settings(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        raise InputError(
            f"{str(path)!r} is no file of settings: give the folder of a run, which "
            "'python -m experiments.selfplay run FOLDER' makes."
        ) from None


# A few small iterations that pass through every stage.
SMOKE: dict[str, Any] = {
    "iterations": 2, "games": 16, "chunk": 8, "simulations": 8, "updates": 4, "batch": 64,
    "eval_games": 4, "eval_every": 1,
}  # fmt: skip


def read_json(path: Path) -> Any:
    """What a file of a run holds.

    Raises:
        InputError: it is not there, or damaged.
    """
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): restore it.") from None
