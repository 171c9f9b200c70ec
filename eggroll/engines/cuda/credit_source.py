"""The CUDA source of token credit: stages that keep what their pairs are credited for, and after.

The operations themselves are written in extensions/int8_gemm/cuda. Letters: M members of a block, T
tokens, V vocabulary, K inputs, Z votes.
"""

from __future__ import annotations

from functools import cache

from eggroll.credit import SILENT
from eggroll.engines.cuda.plan import CudaCreditPlan
from eggroll.engines.cuda.source import (
    VOTE_MEMORY,
    VOTE_SHARED,
    VOTE_THREADS,
    Writer,
    array,
    constants,
    kernel_file,
    source_of,
    sums_of,
    vote_header,
)
from eggroll.engines.gpu.plan import Phase
from eggroll.engines.gpu.text import CreditKernels, Source
from eggroll.program import Op


class CreditWriter(Writer):
    """Lines of a stage that leaves a tape, and tokens drawn for the readout.

    sizes: T, members, pairs, the first token's number, words of signs, pairs of all blocks.
    """

    def __init__(self, plan: CudaCreditPlan, shift: int, product: str) -> None:
        super().__init__(plan, False, shift, product)
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
            added = self.credit.noise_shifts or [SILENT]
            text += array("__constant__", "int", "SHIFTS", added)
        return text + constants(LOGITS=self.credit.logit_stride)

    def files(self) -> list[str]:
        return [*super().files(), "tape"] + ["draw"] * bool(self.credit.readout)

    def opening(self) -> None:
        plan = self.credit
        if self.nodes:
            self("noise.signs = signs;", "noise.words = sizes[4];")
        if plan.readout and plan.logits_shared:
            self.share("uint32_t", "own", plan.logit_bytes // 4, 4)
        elif plan.readout:
            at = (plan.scratch_bytes - plan.logit_bytes) // 4
            self(f"uint32_t* const own = spilled + {at};")

    def token(self) -> None:
        if self.nodes:
            self("noise.t = sizes[3] + t;")

    def products_begin(self, phase: Phase) -> None:
        plan, pairs = self.credit, self.plan.members // 2
        for kept in plan.kept_first(phase):
            at = f"((blockIdx.x * T + t) * {plan.tape_rows} + {kept.row}) * {pairs}"
            self(f"egg::keep<{kept.inputs}>(tape + {at}, r{kept.register}, lane);")
        for op in phase.products:
            if op in plan.traced and not self.nodes:
                at = f"({plan.traced.index(op)} * T + t) * sizes[5] + first / 2"
                self(f"egg::keep_sums(met + {at}, {sums_of(plan, op)}, lane);")
            if op == plan.readout:
                K, x = plan.sizes[op.inputs[0]], op.inputs[0]
                at = f"(first / 2 * T + t) * {K}"
                self(f"egg::keep_rows<{K}>(read + {at}, r{x}, T, members, lane);")

    def scored(self, op: Op) -> None:
        if op == self.credit.readout:
            self(f"egg::keep_logits<{self.plan.program.vocabulary}>(own, logit, tile, lane);")

    def finished(self) -> None:
        if self.credit.readout:
            self(
                f"egg::draw<{self.plan.program.vocabulary}>(moved + (first / 2 * T + t) * 2, "
                "targets + first * T + t, draws + first / 2 * T + t, own, exp2, hits, T, members, "
                "lane);"
            )


def credit_source(plan: CudaCreditPlan, shift: int, product: str) -> Source:
    """The kernel of a stage. shift: of noise on weights, Q + sigma_shift; product: of PRODUCTS."""
    return source_of(CreditWriter(plan, shift, product))


def kernel(name: str, inputs: str, outputs: str, file: str, body: str) -> Source:
    """A kernel that is the same for all networks."""
    header = kernel_file("fixed") + kernel_file(file)
    return Source(name, tuple(inputs.split()), tuple(outputs.split()), header, body)


AT = f"blockIdx.x * {VOTE_THREADS} + threadIdx.x"


def gains_source() -> Source:
    """Credits int8 [credits][T][lanes] and their clipped sums [credits][lanes].

    sizes: credits, T, pairs, words, lanes, the shift of the sums.
    """
    body = f"""\
const uint32_t lanes = sizes[4], at = {AT};
if (at < uint32_t(sizes[0]) * lanes) {{
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
  const uint32_t credit = at / lanes, lane = at % lanes;
  const int sum = egg::weigh(credits + credit * of.T * lanes + lane,
                             egg::credit_of(work + 5 * credit), of, lane);
  sums[at] = int8_t(egg::clip(egg::rounded(sum, sizes[5])));
}}
"""
    inputs = "scores tokens signs starts met table work sizes"
    return kernel("egg_gains", inputs, "credits sums", "gains", body)


def traces_source() -> Source:
    """Sums of credit x input, int32: of every matrix of a stage [pairs][K].

    sizes: matrices, inputs of all, pairs, T, first token, all tokens, rows of the tape, fours of
    pairs in a block, and in all.
    """
    body = f"""\
egg::Tape of;
of.tape = tape;
of.credits = credits;
of.pairs = sizes[2];
of.T = sizes[3];
of.begin = sizes[4];
of.total = sizes[5];
of.rows = sizes[6];
of.of_block = 4 * sizes[7];
of.lanes = 4 * sizes[8];
const uint32_t at = {AT};
const egg::Trace trace = egg::trace_at(work, sizes[0], at / of.lanes);
if (trace.K > 0) egg::follow(sums, of, trace, at % of.lanes);
"""
    return kernel("egg_traces", "tape credits work sizes", "sums", "traces", body)


def credit_vote_sources(product: str) -> tuple[Source, Source]:
    """The kernels that count the credited votes of a stage's matrices, and of all vectors.

    sizes: pairs, pairs of a part, votes, then the shift of the sums or the lanes of the credits.
    """
    matrices = f"""\
{VOTE_MEMORY}const int32_t* const mine = work + 8 * blockIdx.x;
const uint32_t begin = blockIdx.y * sizes[1];
egg::CreditTerms terms;
terms.table = table;
terms.starts = starts;
terms.sums = sums;
terms.pairs = sizes[0];
terms.at = mine[6];
terms.first = mine[7] * sizes[0];
terms.shift = sizes[3];
egg::matrix_votes(Z + blockIdx.y * sizes[2], left, right, egg::tile_of(mine), terms, begin,
                  min(begin + uint32_t(sizes[1]), uint32_t(sizes[0])), egg::lane_of(threadIdx.x));
"""
    vectors = f"""\
const uint32_t at = {AT};
if (at < uint32_t(sizes[2])) {{
  const int32_t* const mine = work + 4 * at;
  const uint32_t begin = blockIdx.y * sizes[1];
  Z[blockIdx.y * sizes[2] + at] = egg::vector_vote(
      mine[0], mine[1], mine[3], sums + mine[2] * sizes[3], table, starts, sizes[0], begin,
      min(begin + uint32_t(sizes[1]), uint32_t(sizes[0])));
}}
"""
    header = vote_header(product, "credit_votes")
    inputs = "table", "starts", "sums", "work", "sizes"
    return (
        Source("egg_credit_votes", inputs, ("Z",), header, matrices, VOTE_SHARED),
        Source("egg_credit_vector_votes", inputs, ("Z",), header, vectors),
    )


def row_sources() -> tuple[Source, Source]:
    """The kernels that add up entries by row: of an embedding, and of the readout.

    sizes: rows, columns, entries, entries of a part, then T, lanes and where the credits begin.
    """
    body = f"""\
const uint32_t columns = sizes[1], blocks = (columns + 31) / 32, task = ({AT}) / 32;
const uint32_t row = task / blocks, column = task % blocks * 32 + threadIdx.x % 32;
if (row < uint32_t(sizes[0]) && column < columns) {{
  const uint32_t count = sizes[2], begin = blockIdx.y * sizes[3];
  @
  Z[(blockIdx.y * sizes[0] + row) * columns + column] =
      egg::row_vote(from, sorted, order, count, begin, min(begin + uint32_t(sizes[3]), count), row,
                    column);
}}
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


@cache
def credit_kernels(product: str) -> CreditKernels:
    """All that runs after the stages."""
    votes = credit_vote_sources(product)
    return CreditKernels(gains_source(), traces_source(), *votes, *row_sources())
