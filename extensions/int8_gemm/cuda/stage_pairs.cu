// The terms of whole sequences' votes, staged by words: a thread takes four terms of four outputs
// and of four inputs.

namespace egg {

// Bytes first .. first + 3 of what begins at `at` and has `count`. Any past its end: no vote is
// made of them.
__device__ inline uint32_t some_of(const int8_t* table, uint32_t at, uint32_t first,
                                   uint32_t count) {
  return first < count ? bytes_at(table, at + first).word(0) : 0;
}

// 255 in bytes whose lowest bit is set in v.
__device__ inline uint32_t whole_bytes(uint32_t v) { return (v & 0x01010101u) * 255u; }

// `value` of each byte.
__device__ inline uint32_t values(uint32_t v) {
  if (CLT) return v;
  const uint32_t some = ((v & 0x7f7f7f7fu) + 0x7f7f7f7fu) | v;  // bit 7 of bytes that are not 0
  return whole_bytes(v >> 7) | ((some >> 7) & 0x01010101u);
}

// What a word is multiplied by, byte by byte: -1, 0 or 1 of its terms.
struct Signs {
  uint32_t minus, kept;
};

__device__ inline Signs signs_of(uint32_t fitness) {
  Signs signs;
  signs.minus = whole_bytes(fitness >> 7);
  signs.kept = whole_bytes(fitness);
  return signs;
}

__device__ inline uint32_t times(uint32_t v, Signs signs) {
  const uint32_t x = v ^ signs.minus;
  const uint32_t low = (x & 0x7f7f7f7fu) + (signs.minus & 0x01010101u);
  return (low ^ (x & 0x80808080u)) & signs.kept;
}

__device__ inline uint4 times(uint4 v, Signs signs) {
  return make_uint4(times(values(v.x), signs), times(values(v.y), signs), times(values(v.z), signs),
                    times(values(v.w), signs));
}

// Four terms from `term` on of four rows of a factor: of as many pairs if the rank is 1, else of
// one pair. at: of the factor in a slice; count: its rows.
__device__ inline uint4 four_terms(PairTerms terms, const int32_t* starts, uint32_t term,
                                   uint32_t at, uint32_t first, uint32_t count) {
  uint32_t v[4];
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t pair = min(RANK == 1 ? term + e : term / RANK, terms.pairs - 1);
    const uint32_t factor = uint32_t(starts[pair]) + RANK * at;
    if (RANK == 1) {
      v[e] = some_of(terms.table, factor, first, count);
    } else {
      const uint32_t row = factor + (first + e) * RANK + term % RANK;
      v[e] = first + e < count ? bytes_at(terms.table, row).word(0) : 0;
    }
  }
  const uint4 all = make_uint4(v[0], v[1], v[2], v[3]);
  return RANK == 1 ? turned_over(all) : all;
}

// As the template of vote_product.cu. Terms past the end count nothing, as their signs are 0.
__device__ inline void stage(uint32_t* left, uint32_t* right, Tile tile, PairTerms terms,
                             uint32_t from, uint32_t end, uint32_t thread) {
  if (RANK != 1 && RANK % 4 != 0) {
    stage<PairTerms>(left, right, tile, terms, from, end, thread);
    return;
  }
  const int32_t* starts = terms.starts + tile.leaf * terms.pairs;
  const uint32_t c = 4 * (thread % (SIDE / 4));
#pragma unroll
  for (uint32_t quad = thread / (SIDE / 4); quad < DEPTH / 4; quad += THREADS / (SIDE / 4)) {
    const uint32_t term = from + 4 * quad;
    uint32_t fitness = 0;
    for (uint32_t e = 0; e < 4; ++e)
      if (term + e < end) fitness |= as_byte(terms.fitness[(term + e) / RANK], e);
    const uint4 a = four_terms(terms, starts, term, tile.K, tile.row + c, tile.O);
    const uint4 b = four_terms(terms, starts, term, 0, tile.column + c, tile.K);
    *reinterpret_cast<uint4*>(left + quad * LINE + c) = times(a, signs_of(fitness));
    *reinterpret_cast<uint4*>(right + quad * LINE + c) =
        make_uint4(values(b.x), values(b.y), values(b.z), values(b.w));
  }
}

}  // namespace egg
