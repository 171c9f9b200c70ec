"""Searches for good options, every trial a real run on an equal budget: `python -m eggroll.sweep`.

options.py has the options, plan.py what is trained, workers.py who trains it, report.py what is
shown and written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from eggroll import cli, runlog
from eggroll.config import Config
from eggroll.errors import InputError, in_python
from eggroll.options import read
from eggroll.ranks import refuse
from eggroll.sweep import report
from eggroll.sweep.options import Options, options_from
from eggroll.sweep.plan import Confirmation, Plan, Search, make_plan
from eggroll.sweep.study import Results, finished
from eggroll.sweep.trial import remove_lost_probes
from eggroll.sweep.workers import run_phase, silence_optuna

AGAIN: Final = "run the same command again to go on."
INTERRUPTED: Final = f"Interrupted, and every finished trial is kept; {AGAIN}"


def search(options: Options) -> Config:
    """Makes or goes on with a study, as the command does; returns the best trial's options.

    They are those of `best.json` in the folder, and train that trial once more.

    Raises:
        InputError: bad input or environment, or no trial has finished; finished trials stay.
        KeyboardInterrupt: by Ctrl-C or SIGTERM.
    """
    with in_python():
        if not sweep(options):
            raise KeyboardInterrupt(INTERRUPTED)
        best = options.folder() / report.BEST
        if not best.exists():
            raise InputError("no trial has finished its budget: give more trials or budget.")
        return read(str(best))


def sweep(options: Options) -> bool:
    """Makes or goes on with a study, writes its results; returns whether it has all its trials.

    Raises:
        InputError: bad input or environment; finished trials stay.
    """
    silence_optuna()
    plan = make_plan(options)
    if not options.storage:
        runlog.new_folder(str(plan.folder), "")
    study = Search(plan).prepared_study()
    runlog.new_folder(str(plan.folder), "")
    remove_lost_probes(plan.folder)
    print_header(plan, finished(study))
    results = Results(study, options.confirm, options.confirm_seeds)
    with cli.Stop(f"finished trials stay; {AGAIN}") as stop:
        with report.Board(study, options.trials, options.slices) as board:
            run_phase(Search(plan), stop, board.update)
        if options.confirm:
            results = confirm(plan, results, stop)
        interrupted = stop.asked
    given = {name: getattr(options, name) for name in ("engine", "chunk", "threads")}
    report.write_results(results, plan.folder, options.json, given, pictures=not interrupted)
    return not interrupted


def confirm(plan: Plan, results: Results, stop: cli.Stop) -> Results:
    """Trains the best trials again on other seeds, unless asked to stop; returns both studies."""
    phase, options = Confirmation(plan), plan.options
    study = phase.prepared_study()
    if not stop.asked:
        phase.queue_best(results.study, study)
        total = phase.total(study)
        if phase.wants_more(study):
            print(f"confirmation: {finished(study)} of {total} runs done, each of the best trials "
                  f"on {options.confirm_seeds} other seeds", flush=True)  # fmt: skip
        with report.Board(study, total, options.slices) as board:
            run_phase(phase, stop, board.update)
    return results._replace(confirmation=study)


def print_header(plan: Plan, done: int) -> None:
    options = plan.options
    print(f"engine: {plan.engine}")
    search = ", ".join(map(str, plan.axes))
    print(f"study: {options.name()} in {report.brief(plan.folder)}; search: {search}")
    print(
        f"trials: {done} of {options.trials} done; {options.trial_budget()} each; "
        f"workers: {options.workers}, threads each: {plan.base.threads}"
    )
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of eggroll.sweep; returns its exit code."""

    def run() -> int:
        refuse("eggroll.sweep")  # its trials are processes of their own
        options = options_from(sys.argv[1:] if argv is None else argv)
        try:
            done = sweep(options)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(str(stop) or INTERRUPTED) from None
        if not done:
            raise KeyboardInterrupt(INTERRUPTED)
        return cli.DONE

    return cli.run(run)


if __name__ == "__main__":
    sys.exit(main())
