// The sums of credit x input over tokens, int32 [pairs][K] of every matrix of a stage, from the
// tape [block][T][rows / 4][M / 2 pairs] of words with four inputs each.

namespace egg {

// The place of four inputs of a matrix: first of all inputs, K, row of the tape, credit, and which
// of the matrix's inputs is the first of these.
struct Trace {
  uint32_t first, K, row, credit, k;
};

// The inputs number 4 quad .. 4 quad + 3 of `count` matrices, of which each begins a new four; K is
// 0 past the last.
__device__ inline Trace trace_at(const int32_t* work, uint32_t count, uint32_t quad) {
  Trace trace = {0, 0, 0, 0, 0};
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t K = work[4 * i + 1], quads = (K + 3) / 4;
    if (quad < quads) {
      trace.first = work[4 * i];
      trace.K = K;
      trace.row = work[4 * i + 2];
      trace.credit = work[4 * i + 3];
      trace.k = 4 * quad;
      return trace;
    }
    quad -= quads;
  }
  return trace;
}

// The arrays of a launch: T tokens of `total`, from `begin` on; pairs of a block of the stage, and
// lanes, those of all blocks.
struct Tape {
  const int8_t *tape, *credits;
  uint32_t pairs, T, begin, total, rows, of_block, lanes;
};

// Four inputs of the pair at `lane`.
__device__ inline void follow(int32_t* sums, Tape of, Trace trace, uint32_t lane) {
  const uint32_t* x = reinterpret_cast<const uint32_t*>(of.tape);
  const uint32_t step = of.rows / 4 * of.of_block;
  x += lane / of.of_block * of.T * step + (trace.row + trace.k) / 4 * of.of_block;
  x += lane % of.of_block;
  const int8_t* c = of.credits + (trace.credit * of.total + of.begin) * of.lanes + lane;
  int sum[4] = {0, 0, 0, 0};
  for (uint32_t t = 0; t < of.T; ++t) {
    const uint32_t inputs = x[t * step];
    const int credit = c[t * of.lanes];
    for (int e = 0; e < 4; ++e) sum[e] += credit * byte_of(inputs, e);
  }
  if (lane >= of.pairs) return;
  for (uint32_t e = 0; e < 4; ++e)
    if (trace.k + e < trace.K) sums[trace.first * of.pairs + lane * trace.K + trace.k + e] = sum[e];
}

}  // namespace egg
