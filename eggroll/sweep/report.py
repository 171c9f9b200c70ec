"""The output of a sweep: progress, a table, the best options as JSON, and pictures."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, TrialState

from eggroll.help import invocation
from eggroll.options import from_dict
from eggroll.runlog import in_bits, write_whole
from eggroll.screen import Screen
from eggroll.sweep.study import (
    FINISHED,
    REFUSED,
    SEED_OFFSET,
    SETTINGS,
    TRIAL,
    Ranked,
    Results,
    by_validation,
)
from eggroll.sweep.trial import MOST_STEPS

BEST, ROWS = "best.json", 10
REFRESH_SECONDS = 1.0  # between two readings of the study
UNEVEN = 1.1  # longest over shortest trial, from which on they do not count as equally long


def unit(study: optuna.Study) -> str:
    return f"bits per {'token' if settings(study).get('data') == 'count' else 'byte'}"


def settings(study: optuna.Study) -> dict[str, Any]:
    return dict(study.user_attrs.get(SETTINGS, {}))


def described(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in params.items())


def short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Board:
    """Progress of a whole study on stderr: a line per trial, and on a terminal a bar."""

    def __init__(self, study: optuna.Study, total: int, slices: int) -> None:
        self.study, self.total, self.slices = study, total, slices
        self.unit, self._refreshed = unit(study), 0.0
        self._known = {t.number for t in study.get_trials(deepcopy=False, states=FINISHED)}
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich import progress as rp
            from rich.console import Console

            words = rp.TextColumn("{task.fields[done]} of {task.total} trials")
            left = (rp.TextColumn("ETA"), rp.TimeRemainingColumn())
            self._screen = Screen()
            console = Console(file=self._screen.as_file(), force_terminal=True)
            self._bar = rp.Progress(words, rp.BarColumn(None), *left, console=console, expand=True)
            done = len(self._known)
            self._task = self._bar.add_task("", total=self.total, completed=done, done=done)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            with contextlib.suppress(OSError):
                self._bar.stop()
                self._screen.close()

    def update(self, at_once: bool) -> None:
        """Shows what is new; a screen that is gone does not stop the sweep."""
        if not at_once and time.monotonic() - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = time.monotonic()
        trials = self.study.get_trials(deepcopy=False)
        done = [t for t in trials if t.state in FINISHED]
        with contextlib.suppress(OSError):
            for trial in (t for t in done if t.number not in self._known):
                self._known.add(trial.number)
                self._print(self._line(trial, len(self._known)))
            if self._bar:
                begun = [t.last_step or 0 for t in trials if t.state == TrialState.RUNNING]
                completed = len(done) + sum(begun) / self.slices
                self._bar.update(self._task, completed=completed, done=len(done))

    def _line(self, trial: FrozenTrial, count: int) -> str:
        """The result of a trial, and the best of the search so far."""
        attrs, place = trial.user_attrs, f"{count}/{self.total}"
        result = self._result(trial)
        if TRIAL in attrs:
            return f"{place} · trial {attrs[TRIAL]} with seed +{attrs[SEED_OFFSET]}: {result}"
        tried = f" · {described(trial.params)}" if trial.params else ""
        best = next(iter(by_validation(self.study)), None)
        known = f" · lowest {bits(best)} (trial {best.number})" if best else ""
        return f"{place} · trial {trial.number}: {result}{tried}{known}"

    def _result(self, trial: FrozenTrial) -> str:
        if refused := trial.user_attrs.get(REFUSED):
            return f"not possible ({refused.rstrip('.')})"
        if trial.state == TrialState.PRUNED:
            last = trial.last_step or 0
            value = trial.intermediate_values.get(last, float("nan"))
            return f"pruned at {in_bits(value)} after {last} of {self.slices} slices"
        updates, seconds = (trial.user_attrs.get(name, 0) for name in ("updates", "seconds"))
        return f"{bits(trial)} {self.unit}, {updates:,} updates in {seconds:.1f} s"

    def _print(self, line: str) -> None:
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)


def write_results(
    results: Results, folder: Path, path: str, given: Mapping[str, Any], *, pictures: bool
) -> None:
    """Writes and prints what the finished trials came to.

    path: of the JSON with all trials, or empty; given: options of this machine for best.json.

    Raises:
        InputError: a file cannot be written.
    """
    ranking, study, folder = results.ranking(), results.study, brief(folder)
    if path:
        write_whole(Path(path), json.dumps(as_json(results), indent=1).encode() + b"\n")
    print_states(results)
    if not ranking:
        print("no trial has finished its budget yet: none is best; give more --trials or --budget.")
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 140).print(table(results, ranking[:ROWS]))
    if warning := uneven_seconds(results):
        print(f"warning: {warning}")
    write_whole(folder / BEST, best_options(results, ranking[0], given))
    print(f"best: trial {ranking[0].trial.number}, {best_words(results)}")
    print_commands(ranking[0].trial, folder / BEST)
    if pictures and len(ranking) > 1:
        from eggroll.sweep.pictures import draw  # here, as matplotlib is slow to import

        print(f"pictures: {', '.join(map(str, draw(results, folder, unit(study))))}")


def brief(folder: Path) -> Path:
    """The folder as seen from the current one, if it is inside: the shorter word to read."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def bits(trial: FrozenTrial) -> str:
    """A complete trial's validation."""
    return in_bits(trial.value or 0)


def best_words(results: Results) -> str:
    """The best trial's validation, and how sure it is."""
    best, what = results.ranking()[0], unit(results.study)
    if results.confirmed():
        low, high = min(best.others), max(best.others)
        return (
            f"{in_bits(best.mean)} {what} as the mean over {results.seeds} other seeds "
            f"({in_bits(low)} to {in_bits(high)}; {bits(best.trial)} in the search)"
        )
    found = f"{bits(best.trial)} {what} with one seed"
    if results.best and len(by_validation(results.study)) > 1:
        return f"{found}; other seeds have not confirmed it, the same command goes on"
    return found


def print_commands(trial: FrozenTrial, path: Path) -> None:
    """Prints the commands that make sense with the best options."""
    options = from_dict(trial.user_attrs["config"], "the best trial")
    longer = min(10 * options.steps, MOST_STEPS)
    command = f"{invocation('train')} --config {shlex.quote(str(path))}"
    print(f"train it once more:     {command}")
    print(f"ten times the updates:  {command} --steps {longer}")
    if options.rule_class.by_steps:
        print(
            f"(The learning rate of rule {options.rule} falls over --steps: a longer run is not "
            "this one continued, and another rate may be best.)"
        )


def print_states(results: Results) -> None:
    trials = results.study.get_trials(deepcopy=False)
    counts = {
        name: sum(t.state == state for t in trials)
        for name, state in (
            ("complete", TrialState.COMPLETE),
            ("pruned", TrialState.PRUNED),
            ("under way elsewhere", TrialState.RUNNING),
        )
    }
    counts["broken off"] = sum(t.state == TrialState.FAIL and bool(t.params) for t in trials)
    counts["confirmation runs"] = len(results.confirmations())
    print("trials: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))


def uneven_seconds(results: Results) -> str:
    """A sentence if trials on a budget of seconds used clearly different ones, else empty."""
    budget = str(settings(results.study).get("budget"))
    runs = [*by_validation(results.study), *results.confirmations().values()]
    seconds = [run.user_attrs["seconds"] for run in runs if run.state == TrialState.COMPLETE]
    if "tokens" in budget or max(seconds) <= UNEVEN * min(seconds):
        return ""
    return (
        f"trials took {min(seconds):.1f} to {max(seconds):.1f} s of {budget}, so they are not on "
        "equal terms (a busy machine, or updates that are long beside the budget): repeat the "
        "sweep on an idle machine, or give --budget-tokens."
    )


def table(results: Results, ranking: Sequence[Ranked]) -> Any:
    """Trials for people, in the given order."""
    from rich.table import Table

    what, seeds = unit(results.study), any(row.others for row in ranking)
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    names = list(dict.fromkeys(name for row in ranking for name in row.trial.params))
    heads = ["trial", f"validation,\n{what}"]
    if seeds:
        heads += [f"mean over {results.seeds}\nother seeds", "largest -\nsmallest"]
    for name in (*heads, "updates", "seconds", *names):
        drawn.add_column(name, justify="right")
    for row in ranking:
        t = row.trial
        cells = [str(t.number), f"{t.value:.4f}"]
        if seeds:
            cells += [f"{row.mean:.4f}", f"{row.spread:.4f}"] if row.others else ["-", "-"]
        cells += [f"{t.user_attrs.get('updates', 0):,}", f"{t.user_attrs.get('seconds', 0):.1f}"]
        tried = (short(t.params[name]) if name in t.params else "-" for name in names)
        drawn.add_row(*cells, *tried)
    return drawn


def best_options(results: Results, best: Ranked, given: Mapping[str, Any]) -> bytes:
    """The options of a trial as eggroll.train's --config takes them, with facts under `about`."""
    trial = best.trial
    about = {
        "study": results.study.study_name,
        "trial": trial.number,
        "validation": trial.value,
        "other_seeds": list(best.others),
        "unit": unit(results.study),
        "updates": trial.user_attrs.get("updates"),
        "seconds": trial.user_attrs.get("seconds"),
        "searched": trial.params,
    }
    options = trial.user_attrs["config"] | dict(given) | {"about": about}
    return json.dumps(options, indent=1).encode() + b"\n"


def as_json(results: Results) -> dict[str, Any]:
    """Both studies for programs."""
    ranking = results.ranking()
    confirmations = [
        {"trial": number, "seed_offset": offset, **_run(run)}
        for (number, offset), run in sorted(results.confirmations().items())
    ]
    return {
        "study": results.study.study_name,
        "unit": unit(results.study),
        "options": settings(results.study),
        "best": ranking[0].trial.number if ranking else None,
        "confirmed": results.confirmed(),
        "warning": uneven_seconds(results) if ranking else "",
        "trials": [
            {"trial": t.number, "params": t.params, **_run(t)}
            for t in results.study.get_trials(deepcopy=False)
        ],
        "confirmation": confirmations,
    }


def _run(trial: FrozenTrial) -> dict[str, Any]:
    """The result of a trial of either study."""
    return {
        "state": trial.state.name.lower(),
        "validation": trial.value if trial.state == TrialState.COMPLETE else None,
        "slices": [value for _, value in sorted(trial.intermediate_values.items())],
        **{name: trial.user_attrs.get(name) for name in ("updates", "seconds", REFUSED)},
    }
