"""The Metal source of token credit: stages that keep what their pairs are credited for, and after.

The operations themselves are written in extensions/int8_gemm/metal. Letters: M members of a
threadgroup, T tokens, V vocabulary, K inputs, Z votes.
"""

from __future__ import annotations

from functools import cache

from eggroll.credit import SILENT
from eggroll.engines.gpu.credit_plan import CreditPlan
from eggroll.engines.gpu.plan import Phase
from eggroll.engines.gpu.text import INCLUDES, CreditKernels, Source, array, constants, kernel_file
from eggroll.engines.metal.source import Writer, source_of, sums_of
from eggroll.program import Op


class CreditWriter(Writer):
    """Lines of a stage that leaves a tape, and tokens drawn for the readout.

    sizes: T, members, pairs, the first token's number, words of signs, pairs of all threadgroups.
    """

    def __init__(self, plan: CreditPlan, shift: int) -> None:
        super().__init__(plan, False, shift)
        self.credit, self.nodes = plan, plan.how.nodes
        self.noise = "nodes" if self.nodes else "weights"
        # The plan of noise on nodes has none, as it takes no x B.
        self.rank, self.perturbed = 1, True

    def inputs(self) -> list[str]:
        return super().inputs() + ["signs"] * self.nodes + ["draws"] * bool(self.credit.readout)

    def outputs(self) -> list[str]:
        plan = self.credit
        names = ["tape"] * bool(plan.traced) + ["met"] * bool(plan.traced and not self.nodes)
        return super().outputs() + names + ["read", "moved"] * bool(plan.readout)

    def constants(self) -> str:
        text = super().constants()
        if self.nodes:
            text += array("int", "SHIFTS", self.credit.noise_shifts or [SILENT])
        return text + constants(LOGITS=self.credit.logit_stride)

    def files(self) -> list[str]:
        return [*super().files(), "tape"] + ["draw"] * bool(self.credit.readout)

    def opening(self) -> None:
        plan = self.credit
        if self.nodes:
            self("noise.signs = signs;", "noise.words = sizes[4];")
        if plan.readout and plan.logits_shared:
            self(f"EGG_SHARED(char4, kept, {plan.logit_bytes // 4});")
            self("threadgroup int8_t* const own = reinterpret_cast<threadgroup int8_t*>(kept);")
        elif plan.readout:
            at = plan.scratch_bytes - plan.logit_bytes
            self(f"device int8_t* const own = reinterpret_cast<device int8_t*>(spilled) + {at};")

    def token(self) -> None:
        if self.nodes:
            self("noise.t = sizes[3] + t;")

    def products(self, phase: Phase) -> None:
        plan, pairs = self.credit, self.plan.members // 2
        for kept in plan.kept_first(phase):
            at = f"((first / M * T + t) * {plan.tape_rows} + {kept.row}) * {pairs}"
            self(f"egg::keep<{kept.inputs}>(tape + {at}, r{kept.register}, lane);")
        for op in phase.products:
            if op in plan.traced and not self.nodes:
                at = f"({plan.traced.index(op)} * T + t) * sizes[5] + first / 2"
                self(f"egg::keep_sums(met + {at}, {sums_of(plan, op)}, lane);")
            if op == plan.readout:
                K, x = plan.sizes[op.inputs[0]], op.inputs[0]
                self(
                    f"egg::keep_rows<{K}>(read + (first / 2 * T + t) * {K}, r{x}, T, members, "
                    "lane);"
                )

    def scored(self, op: Op) -> None:
        if op == self.credit.readout:
            self(f"egg::keep_logits<{self.plan.program.vocabulary}>(own, logit, tile, lane);")

    def finished(self) -> None:
        if self.credit.readout:
            self(
                f"egg::draw<{self.plan.program.vocabulary}>(moved + (first / 2 * T + t) * 2, "
                "targets + first * T + t, draws + first / 2 * T + t, own, hits, T, members, lane);"
            )


def credit_source(plan: CreditPlan, shift: int) -> Source:
    """The kernel of a stage. shift: of noise on weights, Q + sigma_shift."""
    return source_of(CreditWriter(plan, shift))


def kernel(name: str, inputs: str, outputs: str, files: str, body: str) -> Source:
    """A kernel that is the same for all networks."""
    text = "".join(kernel_file(file) for file in ("fixed", *files.split()))
    return Source(name, tuple(inputs.split()), tuple(outputs.split()), INCLUDES + text, body)


@cache
def gains_source() -> Source:
    """Credits int8 [credits][T][lanes] and their clipped sums [credits][lanes].

    sizes: credits, T, pairs, words, lanes, the shift of the sums.
    """
    body = """\
const uint lanes = sizes[4], at = thread_position_in_grid.x;
if (at < uint(sizes[0]) * lanes) {
  egg::Pairs of;
  of.scores = scores;
  of.tokens = tokens;
  of.signs = signs;
  of.starts = starts;
  of.met = met;
  of.table = table;
  of.pairs = sizes[2];
  of.lanes = lanes;
  of.T = sizes[1];
  of.words = sizes[3];
  const uint credit = at / lanes, lane = at % lanes;
  const int sum = egg::weigh(credits + credit * of.T * lanes + lane,
                             egg::credit_of(work + 5 * credit), of, lane);
  sums[at] = int8_t(egg::clip(egg::rounded(sum, sizes[5])));
}
"""
    inputs = "scores tokens signs starts met table work sizes"
    return kernel("egg_gains", inputs, "credits sums", "gains", body)


@cache
def traces_source() -> Source:
    """Sums of credit x input, int32: of every matrix of a stage [pairs][K].

    sizes: matrices, inputs of all, pairs, T, first token, all tokens, rows of the tape, fours of
    pairs in a threadgroup, and in all.
    """
    body = """\
egg::Tape of;
of.tape = tape;
of.credits = credits;
of.pairs = sizes[2];
of.T = sizes[3];
of.begin = sizes[4];
of.total = sizes[5];
of.rows = sizes[6];
of.quads = sizes[7];
of.all_quads = sizes[8];
const uint inputs = sizes[1], at = thread_position_in_grid.x;
if (at < inputs * of.all_quads) {
  const uint group = at / (inputs * of.quads), rest = at % (inputs * of.quads);
  const uint input = rest / of.quads;
  const egg::Trace trace = egg::trace_at(work, sizes[0], input);
  egg::follow(sums, of, trace, input - trace.first, group * of.quads + rest % of.quads);
}
"""
    return kernel("egg_traces", "tape credits work sizes", "sums", "traces", body)


@cache
def credit_vote_sources() -> tuple[Source, Source]:
    """The kernels that count the credited votes of a stage's matrices, and of all vectors.

    sizes: pairs, pairs of a part, votes, then the shift of the sums or the lanes of the credits.
    """
    matrices = """\
EGG_SHARED(int8_t, left, egg::SIDE * egg::LEFT);
EGG_SHARED(int8_t, right, egg::DEPTH * egg::RIGHT);
const device int32_t* const mine = work + 8 * threadgroup_position_in_grid.x;
const uint begin = threadgroup_position_in_grid.y * sizes[1];
egg::CreditTerms terms;
terms.table = table;
terms.starts = starts;
terms.sums = sums;
terms.pairs = sizes[0];
terms.at = mine[6];
terms.first = mine[7] * sizes[0];
terms.shift = sizes[3];
egg::matrix_votes(Z + threadgroup_position_in_grid.y * sizes[2], left, right, egg::tile_of(mine),
                  terms, begin, min(begin + uint(sizes[1]), uint(sizes[0])),
                  thread_index_in_simdgroup, simdgroup_index_in_threadgroup);
"""
    vectors = """\
const uint at = thread_position_in_grid.x;
if (at < uint(sizes[2])) {
  const device int32_t* const mine = work + 4 * at;
  const uint begin = thread_position_in_grid.y * sizes[1];
  Z[thread_position_in_grid.y * sizes[2] + at] = egg::vector_vote(
      mine[0], mine[1], mine[3], sums + mine[2] * sizes[3], table, starts, sizes[0], begin,
      min(begin + uint(sizes[1]), uint(sizes[0])));
}
"""
    files, inputs = "vote_product credit_votes", "table starts sums work sizes"
    return (
        kernel("egg_credit_votes", inputs, "Z", files, matrices),
        kernel("egg_credit_vector_votes", inputs, "Z", files, vectors),
    )


@cache
def row_sources() -> tuple[Source, Source]:
    """The kernels that add up entries by row: of an embedding, and of the readout.

    sizes: rows, columns, entries, entries of a part, then T, lanes and where the credits begin.
    """
    body = """\
const uint columns = sizes[1], blocks = (columns + 31) / 32;
const uint task = threadgroup_position_in_grid.x * 4 + simdgroup_index_in_threadgroup;
const uint row = task / blocks, column = task % blocks * 32 + thread_index_in_simdgroup;
if (row < uint(sizes[0]) && column < columns) {
  const uint count = sizes[2], begin = threadgroup_position_in_grid.y * sizes[3];
  @
  Z[(threadgroup_position_in_grid.y * sizes[0] + row) * columns + column] =
      egg::row_vote(from, sorted, order, count, begin, min(begin + uint(sizes[3]), count), row,
                    column);
}
"""
    embedded = """\
egg::Embedded from;
  from.table = table;
  from.credits = credits + sizes[6];
  from.starts = starts;
  from.T = sizes[4];
  from.lanes = sizes[5];"""
    read = """\
egg::Read from;
  from.inputs = read;
  from.K = columns;"""
    ordered = "sorted order sizes"
    return (
        kernel("egg_embedded", f"table starts credits {ordered}", "Z", "rows",
               body.replace("@", embedded)),
        kernel("egg_read", f"read {ordered}", "Z", "rows", body.replace("@", read)),
    )  # fmt: skip


def credit_kernels() -> CreditKernels:
    """All that runs after the stages."""
    return CreditKernels(gains_source(), traces_source(), *credit_vote_sources(), *row_sources())
