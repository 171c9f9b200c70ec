"""All commands in one: `python -m eggroll COMMAND ...`, or `eggroll COMMAND ...` once installed."""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.main())

import difflib
import sys
from collections.abc import Sequence
from typing import Final

from eggroll.cli import command as cli
from eggroll.cli import entry, help
from eggroll.errors import InputError
from eggroll.files import VERSION

# Command -> its module and what it does.
COMMANDS: Final = {
    "train": (
        "eggroll.training.loop",
        "Train an int8 network, by evolution or by errors carried back.",
    ),
    "generate": ("eggroll.generate", "Write text with a trained network."),
    "replay": ("eggroll.replay", "Rebuild past weights of a run from its replay log."),
    "finetune": (
        "eggroll.lm.command",
        "Tune a pretrained language model of mlx-lm from a reward.",
    ),
    "plot": ("eggroll.plot", "Draw the curves of a run, or compare several runs."),
    "report": ("eggroll.report.command", "Write an HTML page about a run, or about several runs."),
    "verify": (
        "eggroll.training.verify",
        "Prove a run: make its updates again, bit for bit.",
    ),
    "adamw": ("eggroll.adamw", "Train the same network in float by AdamW, for comparison."),
    "sweep": ("eggroll.sweep.command", "Search for good options, all trials at equal cost."),
    "bench": ("eggroll.bench.command", "Time training steps over growing populations."),
    "launch": ("eggroll.launch", "Start one run as several processes, with mlx.launch."),
    "export": (
        "eggroll.library.export",
        "Write a trained network as Python, C, ONNX or safetensors.",
    ),
    "probe": ("eggroll.probe", "Report this machine's int8 hardware and the engines that run."),
    "completion": ("eggroll.completion", "Print a script for completion in bash, zsh or fish."),
}


def overview() -> str:
    """The commands, one line each."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {does}" for name, (_, does) in COMMANDS.items()]
    return "\n".join(
        [
            f"eggroll {VERSION}: train int8 networks in integers alone.",
            "",
            *lines,
            "",
            f"{help.invocation('COMMAND')} --help lists a command's options.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll; returns the exit code of the command it names."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:  # as in `eggroll help train`
        words = [*words[1:2], *["--help"] * (len(words) == 1 or words[1] in COMMANDS)]
    if words and words[0] in COMMANDS:
        return entry.start(COMMANDS[words[0]][0], words[1:])

    def work() -> int:
        if words and words[0] == "--version":
            print(f"eggroll {VERSION}")
        elif not words or cli.asks_for_help(words):
            print(overview())
        else:
            near = difflib.get_close_matches(words[0], [*COMMANDS, "help"], 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COMMANDS)}."
            raise InputError(f"{words[0]!r} is no command of eggroll: {hint}")
        return cli.DONE

    return cli.run(work)
