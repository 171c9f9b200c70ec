"""What a sweep shows and leaves: progress, a table, the best options as JSON, and pictures."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, TrialState

from eggroll.runlog import write_whole
from eggroll.sweep.study import FACTS, FINISHED, best_first

BEST, ROWS = "best.json", 10
LOOK_SECONDS = 1.0  # between looks at the study


def unit(study: optuna.Study) -> str:
    return f"bits per {'token' if facts(study).get('data') == 'count' else 'byte'}"


def facts(study: optuna.Study) -> dict[str, Any]:
    return dict(study.user_attrs.get(FACTS, {}))


def described(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in params.items())


def short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Board:
    """Progress of the whole study on stderr: a line per trial, and on a terminal a bar."""

    def __init__(self, study: optuna.Study, total: int, slices: int) -> None:
        self.study, self.total, self.slices = study, total, slices
        self.unit, self._looked = unit(study), 0.0
        self._known = {t.number for t in study.get_trials(deepcopy=False, states=FINISHED)}
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich import progress as rp
            from rich.console import Console

            words = rp.TextColumn("{task.fields[done]} of {task.total} trials")
            left = (rp.TextColumn("ETA"), rp.TimeRemainingColumn())
            console = Console(stderr=True)
            self._bar = rp.Progress(words, rp.BarColumn(None), *left, console=console, expand=True)
            done = len(self._known)
            self._task = self._bar.add_task("", total=self.total, completed=done, done=done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            with contextlib.suppress(OSError):
                self._bar.stop()

    def update(self, at_once: bool) -> None:
        """Shows what is new; a screen that is gone does not stop the sweep."""
        if not at_once and time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        trials = self.study.get_trials(deepcopy=False)
        done = [t for t in trials if t.state in FINISHED]
        with contextlib.suppress(OSError):
            for trial in (t for t in done if t.number not in self._known):
                self._known.add(trial.number)
                self._say(self._line(trial, len(self._known)))
            if self._bar:
                begun = [t.last_step or 0 for t in trials if t.state == TrialState.RUNNING]
                completed = len(done) + sum(begun) / self.slices
                self._bar.update(self._task, completed=completed, done=len(done))

    def _line(self, trial: FrozenTrial, count: int) -> str:
        if refused := trial.user_attrs.get("refused"):
            what = f"not possible ({refused.rstrip('.')})"
        elif trial.state == TrialState.PRUNED:
            last = trial.last_step or 0
            value = trial.intermediate_values.get(last, float("nan"))
            what = f"pruned at {value:.3f} after {last} of {self.slices} slices"
        else:
            what = f"{trial.value:.3f} {self.unit}, {trial.user_attrs.get('updates')} updates"
        best = next(iter(best_first(self.study)), None)
        known = f" · best {best.value:.3f} (trial {best.number})" if best else ""
        tried = f" · {described(trial.params)}" if trial.params else ""
        return f"{count}/{self.total} · trial {trial.number}: {what}{tried}{known}"

    def _say(self, line: str) -> None:
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


def conclude(
    study: optuna.Study, folder: Path, path: str, given: Mapping[str, Any], *, pictures: bool
) -> None:
    """Writes and prints what the finished trials tell.

    path: of the JSON with all trials, or empty; given: options of this machine for best.json.

    Raises:
        InputError: a file cannot be written.
    """
    best = best_first(study)
    if path:
        write_whole(Path(path), json.dumps(everything(study), indent=1).encode() + b"\n")
    _tell_states(study)
    if not best:
        print("no trial has finished its budget yet: none is best; give more --trials or --budget.")
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 140).print(table(best[:ROWS], unit(study)))
    write_whole(folder / BEST, best_options(study, best[0], given))
    print(f"best: trial {best[0].number}, {best[0].value:.3f} {unit(study)}; train longer with: "
          f"python -m eggroll.train --config {folder / BEST}")  # fmt: skip
    if pictures and len(best) > 1:
        from eggroll.sweep.pictures import draw  # here, as matplotlib is slow to import

        drawn = draw(study, folder, unit(study))
        print(f"pictures: {', '.join(map(str, drawn))}")


def _tell_states(study: optuna.Study) -> None:
    trials = study.get_trials(deepcopy=False)
    counts = {
        name: sum(t.state == state for t in trials)
        for name, state in (
            ("complete", TrialState.COMPLETE),
            ("pruned", TrialState.PRUNED),
            ("under way elsewhere", TrialState.RUNNING),
        )
    }
    counts["broken off"] = sum(t.state == TrialState.FAIL and bool(t.params) for t in trials)
    print("trials: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))


def table(trials: Sequence[FrozenTrial], unit: str) -> Any:
    """Trials for people, in the given order."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    for name in ("trial", unit, "updates", *names):
        drawn.add_column(name, justify="right")
    for t in trials:
        tried = (short(t.params[name]) if name in t.params else "-" for name in names)
        drawn.add_row(
            str(t.number), f"{t.value:.4f}", f"{t.user_attrs.get('updates', 0):,}", *tried
        )
    return drawn


def best_options(study: optuna.Study, trial: FrozenTrial, given: Mapping[str, Any]) -> bytes:
    """The options of a trial as eggroll.train's --config takes them, with facts under `about`."""
    about = {
        "study": study.study_name,
        "trial": trial.number,
        "validation": trial.value,
        "unit": unit(study),
        "updates": trial.user_attrs.get("updates"),
        "seconds": trial.user_attrs.get("seconds"),
        "searched": trial.params,
    }
    options = trial.user_attrs["config"] | dict(given) | {"about": about}
    return json.dumps(options, indent=1).encode() + b"\n"


def everything(study: optuna.Study) -> dict[str, Any]:
    """The study for programs."""
    trials = [
        {
            "trial": t.number,
            "state": t.state.name.lower(),
            "validation": t.value if t.state == TrialState.COMPLETE else None,
            "params": t.params,
            "slices": [value for _, value in sorted(t.intermediate_values.items())],
            **{name: t.user_attrs.get(name) for name in ("updates", "seconds", "refused")},
        }
        for t in study.get_trials(deepcopy=False)
    ]
    best = next(iter(best_first(study)), None)
    return {
        "study": study.study_name,
        "unit": unit(study),
        "options": facts(study),
        "best": best.number if best else None,
        "trials": trials,
    }
