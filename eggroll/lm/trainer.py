"""Tuning a model from a reward: `ask` for the members, let them write, `tell` what it was worth.

Letters: P members, N = P/2 pairs, G prompts of a member.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import ArrayLike, NDArray

from eggroll.cli import command as cli
from eggroll.cli.screen import per_second
from eggroll.errors import InputError, in_python, shown
from eggroll.evolution.estimators import MIN_DIFFERING, as_values
from eggroll.files import path_of
from eggroll.lm import adapter, generation, record
from eggroll.lm.generation import Answer, DrawSettings, Requests, Tokens
from eggroll.lm.layers import Layers, load_model
from eggroll.lm.learner import DeltaLearner, Options, fitness_of
from eggroll.lm.record import Facts, RunLog
from eggroll.ranks import ALONE, Ranks
from eggroll.training import checkpoint

STALLED: Final = 10  # updates
SAME: Final = 0.6  # share of pairs with the same texts above which sigma is doubled
SAME_UPDATES: Final = 5  # in the mean of so many updates
MOST_SCALE: Final = 8.0  # of sigma


class ModelUpdate(NamedTuple):
    """The figures of one update.

    step: updates made; fitness: mean value of the members; update_rate: share of the deltas that
    moved; nonzero_ratio: share of pairs that differed in fitness; identical: share of pairs whose
    members wrote the same; sigma: of this update; seconds: since `ask`; tokens: that the model
    read; rows_per_second: of texts.
    """

    step: int
    fitness: float
    fitness_best: float
    update_rate: float
    nonzero_ratio: float
    identical: float
    sigma: float
    seconds: float
    tokens: int
    rows_per_second: float


class ModelMembers:
    """The members of an update. All that is called between `ask` and `tell` adds up.

    pop: P, or as many of them as live on this rank; same: whether a pair's members wrote the same
    texts so far, bool [N]; tokens: that the model read for them.
    """

    def __init__(self, trainer: ModelTrainer) -> None:
        first, last = trainer.ranks.share(trainer.pop, 2)
        self._trainer, self.pop = trainer, last - first
        self.tokens, self.rows, self.calls = 0, 0, 0
        self.same, self._wrote = np.zeros(self.pop // 2, np.bool_), False

    @property
    def identical(self) -> float:
        """Share of pairs whose members wrote the same texts so far."""
        return float(self.same.mean())

    def generate(
        self,
        prompts: Sequence[Any],
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        stop: str | Sequence[str] = (),
    ) -> list[list[str]]:
        """Every member's answers to the prompts, [P][G] texts.

        Args:
            prompts: [G] for all members, or [N][G], those of every pair; each a text, token ids or
                messages of a chat.
            tokens: most new tokens of an answer.
            temperature: 0 takes the likeliest tokens; else they are drawn, with the same random
                words for all members.
            stop: strings before which an answer ends.

        Raises:
            InputError: a prompt that is none, or the update is over.
        """
        return [[text.text for text in row] for row in self._write(
            prompts, tokens, temperature, stop
        )]  # fmt: skip

    def generate_tokens(
        self,
        prompts: Sequence[Any],
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        stop: str | Sequence[str] = (),
    ) -> list[list[Tokens]]:
        """As `generate`, the ids of the new tokens: [P][G] lists."""
        return [[text.tokens for text in row] for row in self._write(
            prompts, tokens, temperature, stop
        )]  # fmt: skip

    def _write(
        self, prompts: Sequence[Any], tokens: int, temperature: float, stop: str | Sequence[str]
    ) -> list[list[Answer]]:
        trainer = self._current()
        groups = trainer.encoded(prompts)
        if len(groups) not in (1, trainer.pop // 2):
            raise InputError(
                f"prompts are of {len(groups)} pairs and the population has {trainer.pop // 2}: "
                "give one list for all, or a list for every pair."
            )
        sampling = trainer.sampling(temperature)
        limit, stops = checked_limit(tokens), checked_stops(stop)
        length = max(len(ids) for group in groups for ids in group)
        count, texts = len(groups[0]), list[list[Answer]]()
        at_once = generation.at_once(trainer.pop * count)
        for first, pairs in trainer.chunks(count, length + limit, at_once):
            ids, names = list[Tokens](), list[int]()
            for pair in range(first, first + pairs):
                at = pair if len(groups) > 1 else 0
                ids += groups[at] * 2
                names += [*range(at * count, (at + 1) * count)] * 2
            with trainer.running(first, pairs, len(ids)):
                found, read = generation.generate(
                    trainer.model, trainer.tokenizer, Requests(ids, names, at_once, limit, stops),
                    sampling, length,
                )  # fmt: skip
            texts += [found[i : i + count] for i in range(0, len(found), count)]
            self.tokens += read
        self._note(texts)
        return texts

    def _note(self, texts: list[list[Answer]]) -> None:
        """Takes down what was written."""
        for pair, (one, other) in enumerate(zip(texts[0::2], texts[1::2], strict=True)):
            alike = [t.text for t in one] == [t.text for t in other]
            self.same[pair] = alike and (self.same[pair] or not self._wrote)
        self._wrote = True
        self.rows += len(texts) * len(texts[0])
        self.calls += 1

    def loss(
        self, texts: Sequence[Any], prompts: Sequence[Any] | None = None
    ) -> NDArray[np.float32]:
        """Mean nats per token that each member gives the texts, float32 [P, G].

        prompts: [G], after which the texts stand; what is before a text's first token, which
        without a prompt is not scored, is read and not scored.

        Raises:
            InputError: lengths differ, a text has no token to score, or the update is over.
        """
        trainer = self._current()
        rows = trainer.scored(texts, prompts)
        positions = max(len(prompt) + len(after) for prompt, after in rows)
        found = []
        for first, pairs in trainer.chunks(len(rows), positions):
            of_chunk = rows * (2 * pairs)
            with trainer.running(first, pairs, len(of_chunk)):
                nats = generation.losses(trainer.model, of_chunk)
                mx.eval(nats)
            found.append(np.asarray(nats).reshape(2 * pairs, len(rows)))
            self.tokens += len(of_chunk) * (positions - 1)
        self.calls += 1
        self.rows += self.pop * len(rows)
        return np.concatenate(found)

    def _current(self) -> ModelTrainer:
        if self._trainer.asked is not self:
            raise InputError(
                "These members are of an update that is over: call ask() for the new ones."
            )
        return self._trainer


def checked_limit(tokens: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer) or tokens < 1:
        raise InputError(f"tokens is {shown(tokens)}: a whole number from 1 on is needed.")
    return int(tokens)


def listed(name: str, given: Any) -> list[Any]:
    """Several things as a list of one or more; an InputError for anything else."""
    if (
        not isinstance(given, Sequence | np.ndarray)
        or isinstance(given, str | bytes)
        or not len(given)
    ):
        raise InputError(f"{name} are {shown(given)}: a list of one or more is needed.")
    return list(given)


def checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    one = isinstance(stop, str) or not isinstance(stop, Sequence)
    stops: tuple[Any, ...] = (stop,) if one and stop != "" else tuple(stop)
    if not all(isinstance(word, str) and word for word in stops):
        raise InputError(f"stop is {shown(stop)}: a text or several, none empty, are needed.")
    return stops


class ModelTrainer:
    """Tunes a model of mlx-lm by evolution: `ask` for members, `tell` what they were worth.

    step: updates made. A `with` block closes it, and what ends the block, Ctrl-C and SIGTERM too,
    leaves a checkpoint of the last update in `out`. The model is as it was given again after
    `close`; between updates it has the deltas that were learnt in modes biases and dense alone.
    """

    def __init__(
        self,
        model: str | Path | tuple[Any, Any],
        *,
        out: str | Path = "",
        ranks: Ranks = ALONE,
        notes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """A trainer before its first update.

        Args:
            model: a folder or a name on the Hugging Face hub, for mlx-lm to load; or the model and
                its tokenizer.
            out: a new folder, which gets config.json, metrics.jsonl, replay.bin and
                checkpoint.safetensors; without it nothing is written.
            ranks: the processes that share the population, of which each shows its own members
                and is told their values; call `agree` on all of them before the first update.
            notes: plain data of the caller, which checkpoints keep.
            options: see lm.learner.Options.

        Raises:
            InputError: an option out of range, a model that cannot be loaded or has no layer that
                can learn, or a folder that cannot be made or holds a run.
        """
        with in_python():
            self._begin(model, Options(**_known(options)), ranks)
        self.notes |= notes or {}
        if out != "":
            self.write_into(out)

    def write_into(self, out: str | Path) -> None:
        """Begins to write into a new folder, as one that is given to a new trainer."""
        self._write_into(RunLog.new(path_of(out)))

    def _begin(
        self, model: str | Path | tuple[Any, Any], options: Options, ranks: Ranks = ALONE
    ) -> None:
        options.check()
        if ranks.size > options.pop // 2:
            raise InputError(
                f"{ranks.size} ranks are too many for the {options.pop // 2} pairs of --pop "
                f"{options.pop}: give --pop {2 * ranks.size} or more, or start fewer."
            )
        self.ranks = ranks
        self.model_name = str(model) if isinstance(model, str | Path) else ""
        loaded = load_model(model) if isinstance(model, str | Path) else model
        self.model, self.tokenizer = loaded
        self.options = options
        self.layers = Layers(self.model, options)
        self._fingerprint = fingerprint(self.layers)
        self.learner = DeltaLearner(self.layers.leaves, options)
        self.asked: ModelMembers | None = None
        self.sigma_scale, self._same, self._stalled = 1.0, list[float](), 0
        self.notes: dict[str, Any] = {}  # of the caller, kept in checkpoints: plain data for JSON
        self.judged: dict[str, float] = {}  # figures of the last update's judge
        self._log: RunLog | None = None
        self._closed = False
        self.last_fitness = np.zeros(options.pop // 2, np.int8)
        self.layers.set_deltas(self.learner.weights)

    @property
    def facts(self) -> Facts:
        """The facts that a replay log and a checkpoint have of this run."""
        return Facts(self.options, self.layers.leaves, self.model_name, self._fingerprint)

    def _write_into(self, log: RunLog) -> None:
        with log.closed_by_errors():
            self._log = log
            self.save()
            log.begin_run(self.facts, self.step, lambda: self.last_fitness)

    def agree(self, facts: Callable[[], dict[str, Any]] = dict) -> None:
        """Makes all ranks start from what rank 0 has learnt; of one process nothing is asked.

        facts: gives more that must be the same everywhere, by the words for it.

        Raises:
            SharedError: ranks differ in options or model.
        """
        if self.ranks.size == 1:
            return
        options = {k: v for k, v in asdict(self.options).items() if k not in record.CHANGEABLE}
        own = {**options, "the model's weights": self._fingerprint}
        self.ranks.alike(lambda: own | facts())
        kept = self.ranks.from_first(lambda: {"step": self.step, **self._adapted()})
        learner = self.learner
        learnt = checkpoint.tensors(learner.weights, learner.memory)
        arrays = {n: mx.array(a) for n, a in self.ranks.arrays_from_first(learnt).items()}
        learner.weights = {name: arrays[f"weights/{name}"] for name in learner.weights}
        learner.memory = {name: arrays[f"memory/{name}"] for name in learner.memory}
        learner.step = kept["step"]
        self.sigma_scale, self._same, self.notes = kept["sigma_scale"], kept["same"], kept["notes"]
        self.layers.set_deltas(learner.weights)

    @property
    def pop(self) -> int:
        """P, members."""
        return self.options.pop

    @property
    def step(self) -> int:
        """Updates made."""
        return self.learner.step

    @property
    def signature(self) -> str:
        """Hex sha256 of all deltas: equal for bit-identical fine-tunes."""
        return record.signature(self.learner)

    @property
    def log(self) -> RunLog | None:
        """The folder that is written into."""
        return self._log

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                "This trainer is closed, and its model is as it was given: save its adapter, or "
                "go on with lm.Trainer.load."
            )

    def ask(self) -> ModelMembers:
        """This update's members; asking again begins the update anew."""
        if self._log:
            self._log.check_open()
        self._check_open()
        self._began = time.perf_counter()
        self.asked = ModelMembers(self)
        return self.asked

    def tell(
        self, values: ArrayLike, judge: Callable[[], dict[str, float]] | None = None
    ) -> ModelUpdate:
        """Makes the update by what members were worth: larger is better.

        values: real numbers [P], or [P, G], one for each prompt, of the members that live on this
        rank; judge: called, on rank 0, once the model has moved, for more figures of this update's
        line of metrics.

        Raises:
            InputError: another shape, a value that is not finite, or no `ask` with a call of its
                members before it; nothing has changed. Or a file of `out` cannot be written; the
                update is made.
        """
        members = self.asked
        if members is None or not members.calls:
            what = "ask" if members is None else "a call of the members that ask returned"
            raise InputError(f"tell comes without {what}: call ask(), then its members, then tell.")
        checked = self._checked(values, members)
        sigma = self.options.sigma * self.sigma_scale
        told = self._told(members, checked)
        fitness = np.array(told["fitness"], np.int8)
        with cli.uninterrupted():
            rate = self.learner.move(fitness)
            self.layers.set_deltas(self.learner.weights)
            self.last_fitness, self.asked = fitness, None
            differing = int(np.count_nonzero(fitness)) / fitness.size
            if told["rows"]:
                self._adapt(told["identical"])
            seconds = max(time.perf_counter() - self._began, 0.0)
            update = ModelUpdate(
                self.step, told["mean"], told["best"], rate, differing, told["identical"], sigma,
                seconds, told["tokens"], per_second(told["rows"], seconds),
            )  # fmt: skip
            try:
                self.judged = self.ranks.from_first(judge) if judge else {}
            except BaseException:
                self.judged = {}
                raise
            finally:  # whatever a judge does, the update is made and kept
                self._keep(update)
        self._warn(differing)
        return update

    def _told(self, members: ModelMembers, values: NDArray[np.float64]) -> dict[str, Any]:
        """The fitness of all pairs and the figures of all members, as rank 0 makes them."""
        counts = self.ranks.table([members.tokens, members.rows]).sum(axis=0).tolist()
        same = self.ranks.rows(members.same, self.pop // 2, 1)
        every = self.ranks.rows(values, self.pop, 2)

        def made() -> dict[str, Any]:
            mean = every.reshape(self.pop, -1).mean(axis=1)
            return {
                "fitness": fitness_of(every, self.options.fitness).tolist(),
                "mean": float(mean.mean()), "best": float(mean.max()),
                "identical": float(same.mean()), "tokens": counts[0], "rows": counts[1],
            }  # fmt: skip

        return self.ranks.from_first(made)

    def _keep(self, update: ModelUpdate) -> None:
        """Writes an update's line, and a checkpoint where one is due."""
        if self._log:
            self._log.add(update._asdict() | self.judged)
            every = self.options.checkpoint_every
            if self.step == self.options.steps or (every and self.step % every == 0):
                self.save()

    def _adapt(self, identical: float) -> None:
        """Doubles sigma if most pairs wrote the same in the last updates."""
        if not self.options.raise_sigma:
            return
        self._same = [*self._same, identical][-SAME_UPDATES:]
        many = len(self._same) == SAME_UPDATES and sum(self._same) > SAME * SAME_UPDATES
        if many and self.sigma_scale < MOST_SCALE:
            self.sigma_scale, self._same = 2 * self.sigma_scale, []

    def _warn(self, differing: float) -> None:
        self._stalled = self._stalled + 1 if differing < MIN_DIFFERING else 0
        if self._stalled == STALLED:
            warnings.warn(
                f"update {self.step}: in {STALLED} updates fewer than {MIN_DIFFERING:.0%} of the "
                "pairs differed in value: the task is solved, or all members fail alike; then try "
                "a larger sigma, a reward of finer steps, or easier prompts.",
                stacklevel=3,
            )

    def _checked(self, values: ArrayLike, members: ModelMembers) -> NDArray[np.float64]:
        """Values of the members as float64, [P] or [P, G]."""
        try:
            checked = as_values(values)
        except ValueError as error:
            raise InputError(f"{error}.") from None
        most = members.rows // members.pop
        shaped = checked.ndim == 1 or (checked.ndim == 2 and 1 <= checked.shape[1] <= most)
        if not shaped or len(checked) != members.pop:
            raise InputError(
                f"fitness has the shape {list(checked.shape)}: [{members.pop}] is needed, a value "
                f"for every member, or [{members.pop}, G], one for each of its G prompts, which "
                f"were {most} at most."
            )
        return checked

    # The model between updates.

    def generate(
        self,
        prompts: Sequence[Any],
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        stop: str | Sequence[str] = (),
    ) -> list[str]:
        """The answers of the tuned model as it is now, without noise, [G] texts."""
        (group,) = self.encoded(prompts)
        sampling = self.sampling(temperature)
        limit, stops = checked_limit(tokens), checked_stops(stop)
        length, at_once = max(map(len, group)), generation.at_once(len(group))
        texts = []
        for first, rows in self.row_chunks(len(group), length + limit, at_once):
            ids = group[first : first + rows]
            names = [*range(first, first + rows)]
            with self.layers.members(None, rows):
                found, _ = generation.generate(
                    self.model, self.tokenizer, Requests(ids, names, at_once, limit, stops),
                    sampling, length,
                )  # fmt: skip
            texts += [text.text for text in found]
        return texts

    def loss(
        self, texts: Sequence[Any], prompts: Sequence[Any] | None = None
    ) -> NDArray[np.float32]:
        """Mean nats per token that the tuned model gives the texts, float32 [G]."""
        rows = self.scored(texts, prompts)
        positions = max(len(prompt) + len(after) for prompt, after in rows)
        found = []
        for first, count in self.row_chunks(len(rows), positions):
            with self.layers.members(None, count):
                nats = generation.losses(self.model, rows[first : first + count])
                mx.eval(nats)
            found.append(np.asarray(nats))
        return np.concatenate(found)

    def encoded(self, prompts: Sequence[Any]) -> list[list[Tokens]]:
        """Prompts [G] or [N][G] as token ids, one list for all or one for every pair."""
        self._check_open()
        prompts = listed("prompts", prompts)
        first = prompts[0]
        nested = isinstance(first, list | tuple) and first and not isinstance(
            first[0], int | np.integer | dict
        )  # fmt: skip
        groups = [listed("prompts of a pair", one) for one in prompts] if nested else [prompts]
        if len({len(group) for group in groups}) > 1:
            raise InputError("prompts of pairs differ in number: give every pair as many.")
        return [[self._ids(prompt) for prompt in group] for group in groups]

    def _ids(self, text: Any) -> Tokens:
        """A prompt or text as token ids that the model has."""
        ids = generation.encode(self.tokenizer, text)
        about = getattr(self.model, "args", None)
        known, most = (getattr(about, n, None) for n in ("vocab_size", "max_position_embeddings"))
        if isinstance(most, int) and len(ids) > most and not getattr(about, "rope_scaling", None):
            raise InputError(
                f"{shown(text)} has {len(ids)} tokens, and the model has {most} positions: give "
                f"{most} tokens or fewer."
            )
        if isinstance(known, int) and not 0 <= min(ids) <= max(ids) < known:
            raise InputError(
                f"{shown(text)} has the token {max(ids) if max(ids) >= known else min(ids)}: the "
                f"model has 0 to {known - 1}."
            )
        return ids

    def scored(
        self, texts: Sequence[Any], prompts: Sequence[Any] | None
    ) -> list[tuple[Tokens, Tokens]]:
        """(what is read, what is scored) of every text."""
        self._check_open()
        texts = listed("texts", texts)
        prompts = None if prompts is None else listed("prompts", prompts)
        if prompts is not None and len(prompts) != len(texts):
            raise InputError(
                f"prompts are {len(prompts)} and texts {len(texts)}: give each text its prompt."
            )
        rows = []
        for i, text in enumerate(texts):
            if prompts is None:
                ids = self._ids(text)
                rows.append((ids[:1], ids[1:]))
                continue
            before = self._ids(prompts[i])
            after = (
                list(self.tokenizer.encode(text, add_special_tokens=False))
                if isinstance(text, str)
                else self._ids(text)
            )
            rows.append((before, after))
        if not rows or any(not after for _, after in rows):
            raise InputError("a text has no token to score: give texts of two tokens or more.")
        return rows

    def sampling(self, temperature: float) -> DrawSettings:
        """The way that tokens are drawn in this update."""
        if not isinstance(temperature, int | float) or not 0 <= temperature <= 100:
            raise InputError(
                f"temperature is {shown(temperature)}: a number from 0 to 100 is needed."
            )
        return DrawSettings(float(temperature), self.options.seed, self.step)

    def chunks(self, prompts: int, positions: int, at_once: int = 0) -> Iterator[tuple[int, int]]:
        """(first pair, pairs) of every chunk of this rank's that the memory holds.

        at_once: positions that are read at a time; 0: all of them, and logits of each.
        """
        begin, end = (member // 2 for member in self.ranks.share(self.pop, 2))
        row = self._bytes_of_row(positions, at_once)
        noise = sum(4 * self.options.rank * sum(leaf.shape) for leaf in self.layers.leaves)
        pairs = (self.options.memory << 20) // (2 * prompts * row + 3 * noise)
        pairs = self.options.chunk // 2 or max(pairs, 1)
        for first in range(begin, end, pairs):
            yield first, min(pairs, end - first)

    def row_chunks(self, rows: int, positions: int, at_once: int = 0) -> Iterator[tuple[int, int]]:
        """(first row, rows) of every chunk of the model's own rows that the memory holds."""
        row = self._bytes_of_row(positions, at_once)
        most = min(max((self.options.memory << 20) // row, 1), rows)
        for first in range(0, rows, most):
            yield first, min(most, rows - first)

    def _bytes_of_row(self, positions: int, at_once: int) -> int:
        row = generation.bytes_of_row(self.model, positions, at_once or positions)
        vocabulary = getattr(getattr(self.model, "args", None), "vocab_size", 1 << 15)
        return row + (not at_once) * 12 * positions * int(vocabulary)

    @contextmanager
    def running(self, first: int, pairs: int, rows: int) -> Iterator[None]:
        """Within the block the model runs these pairs, `rows` rows in all."""
        noise = self.learner.noise(first, pairs)
        with self.layers.members(noise, rows, self.sigma_scale):
            yield
        mx.clear_cache()

    # Files.

    def save_adapter(self, path: str | Path, *, again: bool = False) -> None:
        """Writes the fine-tune as an adapter that `mlx_lm.generate --adapter-path` reads.

        again: in the place of one that may be there.

        Raises:
            InputError: the folder holds something, or cannot be written.
        """
        place = path_of(path)
        if not again:
            adapter.check_free(place)
        if self.layers.mode.name == "adapter":
            adapter.save_low_rank(
                place, self.layers.leaves, self.learner.weights, self.options.seed
            )
        else:
            if self._closed:
                self.layers.set_deltas(self.learner.weights)
            adapter.save_arrays(place, self.layers.changed())
            if self._closed:
                self.layers.reset()

    def save(self, path: str | Path = "") -> None:
        """Writes everything that `load` needs to go on, bit for bit.

        path: the file; if left out, the checkpoint of the folder `out`.

        Raises:
            InputError: the file cannot be written; what was there before is intact.
        """
        to = path_of(path) if path else self._log
        record.save(to, self.facts, self.learner, self._adapted())

    def _adapted(self) -> dict[str, Any]:
        """Plain data that goes on besides what is learnt."""
        return {"sigma_scale": self.sigma_scale, "same": self._same, "notes": self.notes}

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: str | Path | tuple[Any, Any] | None = None,
        *,
        ranks: Ranks = ALONE,
        **changes: Any,
    ) -> Self:
        """The trainer that was saved, which goes on as if it had never stopped.

        path: a file, or a folder `out`, where it goes on writing; model: needed where the trainer
        was given a model in memory, or where its folder has moved; ranks: as in a new one, of which
        rank 0 alone loads; changes: steps, chunk, memory
        and checkpoint_every may change.

        Raises:
            InputError: missing, damaged, foreign, in use, or of another model.
        """
        with record.opened(path_of(path)) as (file, log):
            saved = record.read(file, _known(changes))
            if model is None and not saved.facts.model:
                raise InputError(
                    f"the run in {str(path)!r} was given a model in memory: give load the model "
                    "and its tokenizer again."
                )
            self = cls.__new__(cls)
            with in_python():
                self._begin(model or saved.facts.model, saved.facts.options, ranks)
            saved.check_model(self.facts)
            saved.restore(self.learner)
            self.sigma_scale, self._same, self.notes = saved.sigma_scale, saved.same, saved.notes
            self.model_name = saved.facts.model if model is None else self.model_name
            self.layers.set_deltas(self.learner.weights)
            if log:
                self._write_into(log)
        return self

    def close(self) -> None:
        """Saves what is new into the folder `out`, gives it free, and the model back."""
        if self._log:
            try:
                self._log.finish(self.step, self.save)
            finally:
                self.asked = None
        self._closed = True
        self.layers.reset()

    def __enter__(self) -> Self:
        if self._log:
            self._log.heed_signals()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if self._log:
            self._log.note_interrupt(error, self.step)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options; an InputError for one that there is not."""
    known = asdict(Options())
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{name} is no option of lm.Trainer: known are {', '.join(known)}.")
        if isinstance(known[name], float) and isinstance(value, int):
            options = {**options, name: float(value)}
        elif not isinstance(value, type(known[name])) or isinstance(value, bool) != isinstance(
            known[name], bool
        ):
            raise InputError(
                f"{name} is {shown(value)}: {type(known[name]).__name__} is needed, as in "
                f"{known[name]!r}."
            )
    return options


def fingerprint(layers: Layers) -> str:
    """Hex sha256 of the layers that learn and of every parameter of the model, as it is stored.

    Raises:
        InputError: one holds NaN.
    """
    digest = hashlib.sha256(json.dumps(layers.leaves).encode())
    parameters: Any = tree_flatten(layers.model.parameters())
    for name, array in parameters:
        if mx.any(mx.isnan(array)).item():
            raise InputError(
                f"{name!r} of the model holds NaN, and so would all that it writes: load a model "
                "whose weights are whole."
            )
        digest.update(json.dumps([name, array.shape, str(array.dtype)]).encode())
        digest.update(np.asarray(array.reshape(-1).view(mx.uint8)).data)
    return digest.hexdigest()
