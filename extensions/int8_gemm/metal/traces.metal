// The sums of credit x input over tokens, int32 [pairs][K] of every matrix of a stage, from the
// tape [threadgroup][T][rows][M / 2 pairs].

namespace egg {

// The place of a matrix's inputs: first of all inputs, K, row of the tape, credit.
struct Trace {
  uint first, K, row, credit;
};

EGG_FUNCTION Trace trace_of(const device int32_t* w) {
  Trace trace;
  trace.first = w[0];
  trace.K = w[1];
  trace.row = w[2];
  trace.credit = w[3];
  return trace;
}

// The matrix that input `at` of all belongs to.
EGG_FUNCTION Trace trace_at(const device int32_t* work, uint count, uint at) {
  Trace trace = trace_of(work);
  for (uint i = 1; i < count; ++i)
    if (at >= uint(work[4 * i])) trace = trace_of(work + 4 * i);
  return trace;
}

// The arrays of a launch: T tokens of `total`, from `begin` on; quads: fours of pairs in a
// threadgroup of the stage, and in all of them.
struct Tape {
  const device int8_t *tape, *credits;
  uint pairs, T, begin, total, rows, quads, all_quads;
};

// Input k of four pairs: number `four` of all.
EGG_FUNCTION void follow(device int32_t* sums, Tape of, Trace trace, uint k, uint four) {
  const device char4* x = reinterpret_cast<const device char4*>(of.tape);
  const device char4* c = reinterpret_cast<const device char4*>(of.credits);
  x += (four / of.quads * of.T * of.rows + trace.row + k) * of.quads + four % of.quads;
  c += (trace.credit * of.total + of.begin) * of.all_quads + four;
  int sum[4] = {0, 0, 0, 0};
  for (uint t = 0; t < of.T; ++t) {
    const char4 input = x[t * of.rows * of.quads], credit = c[t * of.all_quads];
    sum[0] += int(input.x) * int(credit.x);
    sum[1] += int(input.y) * int(credit.y);
    sum[2] += int(input.z) * int(credit.z);
    sum[3] += int(input.w) * int(credit.w);
  }
  EGG_EACH (i, 4) {
    const uint pair = 4 * four + i;
    if (pair < of.pairs) sums[trace.first * of.pairs + pair * trace.K + k] = sum[i];
  }
}

}  // namespace egg
