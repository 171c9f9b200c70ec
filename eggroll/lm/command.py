"""Fine-tuning from a reward: `eggroll finetune --model PATH --data FILE --reward FILE.py:function`.

Letters: P members, G prompts of an update.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.lm.command"))

import hashlib
import importlib.util
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, cast

import numpy as np
import tyro

from eggroll.cli import command as cli
from eggroll.cli.help import CHANGEABLE, Group
from eggroll.cli.screen import say
from eggroll.errors import InputError, shown
from eggroll.files import CHECKPOINT, METRICS, SAMPLES, open_regular, write_whole
from eggroll.lm import record, rewards
from eggroll.lm.layers import load_model
from eggroll.lm.learner import Options
from eggroll.lm.rewards import RewardError, Row
from eggroll.lm.trainer import ModelTrainer, ModelUpdate
from eggroll.ranks import ALONE, Ranks, SharedError, launched, refuse
from eggroll.ranks.watch import WatchedRanks, join
from eggroll.spec import rng
from eggroll.training import trackers
from eggroll.training.config import SeveralRanks
from eggroll.training.folder import check_free, new_folder, read_lines
from eggroll.training.run import check_options

EXAMPLES: Final = (
    ("--model DIR --data FILE.jsonl --reward mine.py:reward", "tune by a function of yours"),
    ("--resume runs/prompts-000 --steps 400", "go on with a run"),
)
ADAPTER: Final = "adapter"  # of the run's folder
SHOWN: Final = 4  # samples
SAID_SECONDS: Final = 10.0  # between lines of progress
HELD_OUT, ORDER = 0, 1  # purposes of the caller's random words
REWARD: Final = "the reward's file"


@dataclass(frozen=True)
class FinetuneOptions(Options):
    """Options of eggroll finetune."""

    model: Annotated[str, Group.DATA, tyro.conf.arg(metavar="DIR|NAME")] = ""
    """The model, in mlx-lm's format: a folder, or a name on the Hugging Face hub."""
    data: Annotated[str, Group.DATA, tyro.conf.arg(metavar="FILE")] = ""
    """Prompts, a JSON object a line: "prompt" is a text, or "messages" those of a chat; the reward
    gets all its fields."""
    reward: Annotated[str, Group.DATA, tyro.conf.arg(metavar="FILE.py:FUNCTION|NAME")] = ""
    """The reward: a function of (prompt, answer) or (prompt, answer, row) in a file, or exact,
    contains, json, python or countdown."""
    reward_seconds: Annotated[float, Group.DATA, cli.Range(0, 3600), CHANGEABLE] = 5.0
    """Seconds that one call of the reward may take; 0 for any time."""
    chat: Annotated[bool, Group.DATA] = True
    """Puts prompts into the model's chat template, where it has one."""
    prompts: Annotated[int, Group.DATA, cli.Range(1, 1 << 16)] = 8
    """G, prompts of an update, the same for all members."""
    tokens: Annotated[int, Group.DATA, cli.Range(1, 1 << 16)] = 64
    """Most new tokens of an answer."""
    temperature: Annotated[float, Group.DATA, cli.Range(0, 100)] = 0.0
    """Temperature of the members' answers; 0 takes the likeliest tokens."""
    stop: Annotated[str, Group.DATA, tyro.conf.arg(metavar="TEXT")] = ""
    """A text before which answers end."""
    rows: Annotated[int, Group.OUTPUT, cli.Range(1, 1 << 20)] = 64
    """Prompts that are held out, to judge the model by greedy answers."""
    judge_every: Annotated[int, Group.OUTPUT, cli.Range(0, 10**9), CHANGEABLE] = 10
    """Updates from one judgement on the held-out prompts to the next; 0 for first and last only."""
    track: Annotated[
        str, Group.OUTPUT, tyro.conf.arg(metavar="none|tensorboard|wandb|trackio"), CHANGEABLE
    ] = trackers.NONE
    """Trackers that are told the figures of every update, with commas between them."""
    out: Annotated[str, Group.RUN, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of the run; the first free runs/NAME-000 if not given."""
    resume: Annotated[str, Group.RUN, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of a run that goes on, bit for bit on the same device."""
    sweep: Annotated[int, Group.RUN, cli.Range(0, 10**6)] = 0
    """Trials of a search over sigma and rate, from an eighth to eight times those given, each a
    fine-tune of --steps updates, judged by the held-out prompts; 0 for one fine-tune."""

    def check(self) -> None:
        super().check()
        trackers.names_in(self.track)
        for name in ("model", "data", "reward"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing: {MISSING[name]}.")

    def at_home(self) -> FinetuneOptions:
        """Itself, with paths made absolute, so that a run can resume anywhere."""
        file, colon, function = self.reward.rpartition(":")
        reward = absolute(file) + colon + function
        return replace(self, data=absolute(self.data), model=absolute(self.model), reward=reward)


def absolute(path: str) -> str:
    """A path that exists as an absolute one; other words stay."""
    return os.path.abspath(path) if os.path.exists(path) else path


MISSING: Final = {
    "model": "give the folder of a model in mlx-lm's format, or its name on the hub",
    "data": "give a file with a JSON object a line, such as {\"prompt\": \"2 + 2 =\"}",
    "reward": "give FILE.py:FUNCTION, or one of " + ", ".join(rewards.BY_NAME),
}  # fmt: skip
LEARNING: Final = tuple(field.name for field in fields(Options))


class Task(NamedTuple):
    """Prompts and their rows, those trained on and those held out."""

    train: list[Row]
    held_out: list[Row]


def read_rows(path: str) -> list[Row]:
    """The objects of a file of lines.

    Raises:
        InputError: it cannot be read, or a line is none with a prompt.
    """
    try:
        with open_regular(Path(path)) as file:
            lines = file.read().decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(
            f"--data {path!r} cannot be read ({error!s:.100}): give a file with a JSON object a "
            "line, in UTF-8."
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            good = isinstance(row["prompt"], str) if "prompt" in row else _is_chat(row["messages"])
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise InputError(
                f'line {number} of {path!r} is {shown(line)}: a JSON object with "prompt", a text, '
                'or "messages", objects with "role" and "content", is needed.'
            )
        rows.append(row)
    return rows


def _is_chat(messages: Any) -> bool:
    return bool(messages) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and "content" in one
        for one in messages
    )


def task_of(rows: Sequence[Row], held_out: int, prompts: int, seed: int) -> Task:
    """Rows dealt by the seed into those held out and those trained on."""
    if len(rows) < held_out + prompts:
        raise InputError(
            f"the data have {len(rows)} prompts: {held_out} held out (--rows) and {prompts} of an "
            "update (--prompts) are needed; lower these or add prompts."
        )
    order = np.argsort(rng.counters(rng.key(seed, rng.CALLER, HELD_OUT), 0, len(rows)))
    shuffled = [rows[i] for i in order]
    return Task(shuffled[held_out:], shuffled[:held_out])


def rows_of_update(rows: Sequence[Row], update: int, count: int, seed: int) -> list[Row]:
    """The rows of an update: all in an order of their own, then all in another."""
    chosen = []
    for place in range(update * count, (update + 1) * count):
        epoch, at = divmod(place, len(rows))
        words = rng.counters(rng.key(seed, rng.CALLER, ORDER, epoch), 0, len(rows))
        chosen.append(rows[int(np.argsort(words)[at])])
    return chosen


def text_of(row: Row) -> str:
    """A row's prompt as the reward gets it: of a chat the last message."""
    return str(row["prompt"] if "prompt" in row else row["messages"][-1]["content"])


def prompt_of(row: Row, chat: bool) -> Any:
    """A row's prompt as the model gets it."""
    if "prompt" not in row:
        return row["messages"]
    return [{"role": "user", "content": row["prompt"]}] if chat else row["prompt"]


def chats(options: FinetuneOptions, tokenizer: Any) -> bool:
    """True if prompts are put into the chat template of the model."""
    return options.chat and bool(getattr(tokenizer, "has_chat_template", False))


def reward_of(name: str) -> Callable[..., Any]:
    """The function that --reward names.

    Raises:
        InputError: there is none, or its file cannot be run.
    """
    if name in rewards.BY_NAME:
        ready: Callable[..., Any] = rewards.BY_NAME[name]()
        return ready
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location("eggroll_reward", path) if path else None
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise InputError(
            f"--reward {name!r} is no FILE.py:FUNCTION: give one, or {', '.join(rewards.BY_NAME)}."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    if (beside := str(Path(path).resolve().parent)) not in sys.path:
        sys.path.append(beside)  # what lies beside it can be imported
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the file of --reward {name!r} fails ({type(error).__name__}: {error!s:.200}): "
            "correct it."
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(f"{path!r} has no function {function!r}: correct --reward.")
    reward: Callable[..., Any] = found
    return reward


class Finetune:
    """A run of the command: a ModelTrainer, its task and its reward."""

    def __init__(
        self,
        options: FinetuneOptions,
        trainer: ModelTrainer,
        task: Task,
        reward: Callable[..., Any],
    ) -> None:
        self.options, self.trainer, self.task, self.reward = options, trainer, task, reward
        self.chat = chats(options, trainer.tokenizer)
        stop = (options.stop,) if options.stop else ()
        self.writing: dict[str, Any] = {"tokens": options.tokens, "stop": stop}

    def prompts(self, rows: Sequence[Row]) -> list[Any]:
        return [prompt_of(row, self.chat) for row in rows]

    def scores(self, rows: Sequence[Row], answers: Sequence[str]) -> list[float]:
        """The rewards of answers to these rows."""
        texts = [text_of(row) for row in rows]
        limit = self.options.reward_seconds
        return rewards.scores(self.reward, rewards.Answered(texts, answers, rows), limit)

    def judge(self) -> dict[str, float]:
        """The mean reward of greedy answers to the held-out prompts."""
        answers = self.trainer.generate(self.prompts(self.task.held_out), **self.writing)
        self.answers = answers
        return {"held_out": float(np.mean(self.scores(self.task.held_out, answers)))}

    def update(self) -> ModelUpdate:
        """Makes an update."""
        options, es = self.options, self.trainer
        rows = rows_of_update(self.task.train, es.step, options.prompts, options.seed)
        members = es.ask()

        def values() -> list[list[float]]:
            answers = members.generate(
                self.prompts(rows), temperature=options.temperature, **self.writing
            )
            return [self.scores(rows, row) for row in answers]

        told = es.ranks.together(values)
        now = es.step + 1
        due = now == options.steps or (options.judge_every and now % options.judge_every == 0)
        return es.tell(told, self.judge if due else None)

    def samples(self) -> str:
        """Held-out prompts with the answers before and now."""
        before, lines = self.trainer.notes["samples"], list[str]()
        for row, first, last in zip(self.task.held_out, before, self.answers, strict=False):
            lines += [f"=== {text_of(row)}", f"--- before: {first}", f"--- now: {last}", ""]
        return "\n".join(lines)


class Tuned(NamedTuple):
    """The end of a run; resume_hint: says how it goes on, if it was interrupted."""

    resume_hint: str = ""


def finetune(options: FinetuneOptions) -> None:
    """Makes the updates that a run has left, and writes the adapter.

    Raises:
        InputError: an option, the model, the data or the reward is no good; what was learnt is
            kept.
        KeyboardInterrupt: it was interrupted; says how it goes on.
    """
    if hint := (sweep(options) if options.sweep else tune(options, ALONE)).resume_hint:
        raise KeyboardInterrupt(hint)


def tune(options: FinetuneOptions, ranks: Ranks) -> Tuned:
    """The run on this rank; of several only rank 0 writes and speaks."""
    options.check()
    options = options.at_home()

    def task_and_reward() -> tuple[Task, Callable[..., Any]]:
        rows = read_rows(options.data)
        task = task_of(rows, options.rows, options.prompts, options.seed)
        return task, reward_of(options.reward)

    task, reward = ranks.together(task_and_reward)
    with ExitStack() as stack:
        es = ranks.together(lambda: stack.enter_context(begin(options, ranks, task)))
        es.agree(lambda: digests(options))
        stack.enter_context(correctable(es))
        run = Finetune(options, es, task, reward)
        folder = Path(ranks.from_first(lambda: str(folder_of(es))))
        hint = f"go on with eggroll finetune --resume {shlex.quote(str(folder))}"
        if not es.step:
            try:
                es.notes |= ranks.from_first(lambda: run.judge() | {"samples": run.answers[:SHOWN]})
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"Interrupted before the first update; {hint}.") from None
        first = es.notes["held_out"]
        if isinstance(ranks, WatchedRanks):
            ranks.watch.resume = f"; {hint}"
        if es.log:
            if not es.step:
                es.save()
            if es.log.lacks:
                say(f"No more of this run can be replayed, as {es.log.lacks}.")
            print(f"model: {options.model}, {about(es)}", flush=True)
            print(f"held out: {first:.3f} before", flush=True)
        track = "none" if ranks.rank else options.track
        tracking = stack.enter_context(trackers.tracking(track, folder, es.step))
        stop = cli.Stop(f"the last update is saved; {hint}.", says=ranks.rank == 0)
        stack.enter_context(stop)
        progress = Progress(options.steps)
        while es.step < options.steps and not ranks.table([stop.asked]).any():
            update = run.update()
            if es.log:
                progress(update, es.judged)
            tracking.log(update._asdict() | es.judged)
        if es.step < options.steps:
            es.close()
            return Tuned(f"Interrupted after update {es.step} of {options.steps}; {hint}.")
        if es.log:
            finish(run, folder, first)
        return Tuned()


def sweep(options: FinetuneOptions) -> Tuned:
    """The trials that a search over sigma and rate has left."""
    options.check()
    refuse("finetune --sweep")
    if options.track != trackers.NONE:
        raise InputError(
            f"--track {options.track} is told of the updates of one fine-tune, and --sweep makes "
            "many: leave --track out."
        )
    from eggroll.lm.search import STUDY, TRIALS, Report, TuningSearch  # Optuna takes a while

    rows = read_rows(options.data)
    task = task_of(rows, options.rows, options.prompts, options.seed)
    reward, model = reward_of(options.reward), load_model(options.model)
    if options.out:
        check_free(Path(options.out))
    with ModelTrainer(model, **{name: getattr(options, name) for name in LEARNING}) as es:
        check_prompts(es, options, task)
    folder = new_folder(options.out, options.data)
    search = TuningSearch(folder, options, digests(options))
    hint = f"the same command with --out {folder} goes on"
    with cli.Stop(f"trials that ended are kept; {hint}.") as stop:

        def run(trial: FinetuneOptions, report: Report) -> float | None:
            es = ModelTrainer(model, **{name: getattr(trial, name) for name in LEARNING})
            tuned, progress = Finetune(trial, es, task, reward), Progress(trial.steps)
            try:
                while es.step < trial.steps:
                    if stop.asked:
                        return None
                    progress(tuned.update(), es.judged)
                    if es.judged and not report(es.judged["held_out"], es.step):
                        break
                return es.judged["held_out"]
            finally:
                es.close()

        while search.done < options.sweep and not stop.asked:
            if one := search.next(run):
                print(
                    f"trial {search.done}/{options.sweep}: --sigma {one.sigma} --rate {one.rate}, "
                    f"held out {one.held_out:.3f}" + ", ended early" * one.early, flush=True
                )  # fmt: skip
    if search.done < options.sweep:
        return Tuned(f"Interrupted after {search.done} of {options.sweep} trials; {hint}.")
    best = search.best()
    print(f"best: --sigma {best.sigma} --rate {best.rate}, held out {best.held_out:.3f}, of "
          f"{search.done} trials; it was chosen by these prompts: judge it by others")  # fmt: skip
    print(f"written to {folder}: {TRIALS}, {STUDY}")
    return Tuned()


def begin(options: FinetuneOptions, ranks: Ranks, task: Task) -> ModelTrainer:
    """The trainer of a new run, or of the one that goes on, which rank 0 alone reads."""
    learning = {name: getattr(options, name) for name in LEARNING}
    if ranks.rank:
        return ModelTrainer(options.model, ranks=ranks, **learning)
    notes = {"command": asdict(options), "digests": digests(options)}
    if options.resume:
        changes = {name: getattr(options, name) for name in record.CHANGEABLE}
        es = ModelTrainer.load(options.resume, options.model, ranks=ranks, **changes)
        es.notes |= notes
        return es
    if options.out:
        check_free(Path(options.out))
    es = ModelTrainer(options.model, ranks=ranks, notes=notes, **learning)
    check_prompts(es, options, task)
    es.write_into(options.out or new_folder("", options.data))
    return es


def check_prompts(es: ModelTrainer, options: FinetuneOptions, task: Task) -> None:
    """Raises InputError where the model cannot be given the prompt of a row."""
    chat = chats(options, es.tokenizer)
    for row in (*task.train, *task.held_out):
        try:
            es.encoded([prompt_of(row, chat)])
        except Exception as error:  # of a tokenizer or a chat's template
            raise InputError(
                f"the prompt of the row {shown(dict(row))} in {options.data!r} cannot be given to "
                f"the model ({error!s:.200}): correct it."
            ) from error


@contextmanager
def correctable(es: ModelTrainer) -> Iterator[None]:
    """Once the reward has failed in the block, its file and the prompts may be corrected."""
    try:
        yield
    except (RewardError, SharedError):
        if es.log:
            es.notes["digests"] = {}
            es.save()
        raise


def folder_of(es: ModelTrainer) -> Path:
    assert es.log is not None
    return es.log.path


def digests(options: FinetuneOptions) -> dict[str, Any]:
    """The contents of the files that all ranks must have alike, as hex sha256."""
    path = options.reward.rpartition(":")[0]
    files = {"the prompts": options.data} | ({REWARD: path} if path else {})
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest()
            for name, file in files.items()}  # fmt: skip


def check_unchanged(before: Mapping[str, str], options: FinetuneOptions) -> None:
    """Raises InputError unless the files have these digests; one that is missing is found later."""
    with suppress(OSError):
        for name, now in digests(options).items():
            if now != before.get(name, now):
                file = options.reward.rpartition(":")[0] if name == REWARD else options.data
                raise InputError(
                    f"{file!r} has changed since the run in {options.resume!r} began: restore it, "
                    "or begin a new run with --out."
                )


def about(es: ModelTrainer) -> str:
    """The layers that learn and those that do not, in a line."""
    numbers = sum(leaf.outputs * leaf.columns for leaf in es.learner.leaves)
    rest = ", ".join(f"{count} {kind}" for kind, count in sorted(es.layers.untouched.items()))
    return f"{numbers:,} numbers learn in {len(es.learner.leaves)} layers; unchanged are {rest}"


class Progress:
    """Lines on stderr, one in some seconds and one for every judgement."""

    def __init__(self, steps: int) -> None:
        self.steps, self._said = steps, float("-inf")

    def __call__(self, update: ModelUpdate, judged: dict[str, float]) -> None:
        now = time.monotonic()
        if not judged and now - self._said < SAID_SECONDS:
            return
        self._said = now
        held_out = f" · held out {judged['held_out']:.3f}" if judged else ""
        say(
            f"update {update.step}/{self.steps} · reward {update.fitness:.3f}{held_out} · "
            f"{update.identical:.0%} of pairs alike · {update.seconds:.1f} s"
        )


def finish(run: Finetune, folder: Path, first: float) -> None:
    """The adapter, the samples and the last words of a run."""
    es = run.trainer
    adapter = folder / ADAPTER
    es.save_adapter(adapter, again=True)
    if not hasattr(run, "answers"):
        run.judge()
    write_whole(folder / SAMPLES, run.samples().encode())
    last = float(np.mean(run.scores(run.task.held_out, run.answers)))
    print(f"held out: {last:.3f} after {es.step} updates ({first:.3f} before)")
    lines = len(read_lines(folder / METRICS))
    print(f"written to {folder}: {ADAPTER}/, {SAMPLES}, {METRICS} ({lines} lines)")
    model, path = shlex.quote(run.options.model), shlex.quote(str(adapter))
    print(f"next: mlx_lm.generate --model {model} --adapter-path {path}")
    print(f"signature: {es.signature}")


def options_from(argv: Sequence[str], begun: Sequence[Any] = ()) -> FinetuneOptions:
    """The options of the command line, over those of the run in --resume.

    begun: the latter as `resumed` has them, where the folder may lie on another machine.

    Raises:
        InputError: an option is unknown or may not change, there is no run, or its prompts or its
            reward have changed.
    """
    folder = cli.word_of(argv, "--resume")
    if folder and not begun and not cli.asks_for_help(argv):
        begun = resumed(folder)
    stored, updates, before = begun or (None, 0, {})
    base = FinetuneOptions(**stored).at_home() if stored else None
    options = cli.parse(
        FinetuneOptions, argv, command="finetune", about=ABOUT, examples=EXAMPLES, base=base
    )
    if base:
        options = options.at_home()
        check_options(base, updates, cast(Any, options))
        check_unchanged(before, options)
    return options


def resumed(folder: str) -> tuple[dict[str, Any], int, dict[str, str]]:
    """(options, updates made, digests) of the run in a folder, plain data."""
    path = Path(folder) / CHECKPOINT
    if not path.is_file():
        raise InputError(
            f"--resume {folder!r} has no {CHECKPOINT}: give the folder of a fine-tune, or begin a "
            "new run with --out."
        )
    saved = record.read(path)
    stored = saved.notes.get("command")
    if not isinstance(stored, dict):
        raise InputError(
            f"the run in {folder!r} was begun from Python: go on with lm.Trainer.load({folder!r})."
        )
    known = {field.name for field in fields(FinetuneOptions)}
    options = {k: v for k, v in stored.items() if k in known} | {"out": "", "resume": folder}
    return options, saved.step, saved.notes.get("digests", {})


ABOUT: Final = (
    "Tunes a pretrained language model of mlx-lm from a reward, with the memory of generation: "
    "members of a population write answers, and the better ones move an adapter."
)


class FinetuneCommand(cli.Command[FinetuneOptions]):
    """eggroll finetune, in one process or as one of the ranks that mlx.launch started."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        words = list(sys.argv[1:] if argv is None else argv)
        if launched() and not cli.asks_for_help(words):
            return cli.run(lambda: self._as_rank(words))
        return super().__call__(words)

    def _as_rank(self, words: Sequence[str]) -> int:
        rank = join(SeveralRanks.rank_timeout)
        if rank is None:
            return super().__call__(words)

        def work() -> Tuned:
            folder = cli.word_of(words, "--resume")
            begun = rank.from_first(lambda: resumed(folder) if folder else ())
            options = rank.together(lambda: options_from(words, begun))
            return sweep(options) if options.sweep else tune(options, rank)

        return rank.run(work)


main = FinetuneCommand(FinetuneOptions, finetune, options_from)


if __name__ == "__main__":
    sys.exit(main())
