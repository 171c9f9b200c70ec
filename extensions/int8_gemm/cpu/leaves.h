// An operation's leaf and noise in the layouts of one block.

// The weights and noise of an operation's leaf for one block.
struct LeafNoise {
  uint32_t* raw;                // B as words [r][K/4][16 pairs]
  Isa::Noise* b;                // the same, prepared for lane_dot
  int8_t* a;                    // [r][O][16 pairs]
  uint32_t* pairs;              // the same of rank 1, or `node`, in 16 bits, see LowRank
  int8_t* vector;               // [n/4][32][4]: the perturbed vector w', or the plain one
  int32_t* node;                // [O][16 pairs]: noise on the outputs, unless in `pairs`
  Scale by;                     // of a matrix' products
  const int8_t* const* slices;  // [16 pairs], of an embedding
  uint32_t* row;  // noise on the outputs of an embedding or of features, words [n/4][32]: n, and -n
                  // in the upper lanes
};

// Lays a leaf out in the arena; without memory (base null) it only adds up the bytes.
struct Loader : Members {
  Arena& arena;
  LeafNoise out{};

  Loader(const Members& who, Arena& memory) : Members(who), arena(memory) {}

  LeafNoise load(const Op& op) {
    place(op);
    return out;
  }

  // Four neighbouring inputs of B to a word, zero beyond K; prepared for products unless `embed`.
  void load_b(const Op& op, int k) {
    if (Isa::kNoiseRows && op.kind != OpKind::embed) return keep_rows(op, k);
    int words = words_of(k), r = job.rank;
    size_t one = Isa::noise_size(words), raw_one = static_cast<size_t>(words) * kPairs;
    uint32_t* raw = out.raw = arena.take<uint32_t>(raw_one * r);
    if (op.kind != OpKind::embed) out.b = arena.take<Isa::Noise>(one * r);
    if (!arena.base) return;
    for (int j = 0; j < r; ++j, raw += raw_one) {
      const int8_t* src[kPairs];
      for (int p = 0; p < kPairs; ++p) src[p] = slice(op.leaf, p) + j;
      int whole = r == 1 ? k / 4 : 0;
      Isa::transpose_words(src, whole, raw, kPairs);
      for (int w = whole; w < words; ++w)
        for (int p = 0; p < kPairs; ++p) raw[w * kPairs + p] = gather_word(src[p], 4 * w, k, r);
      if (op.kind != OpKind::embed) Isa::prepare_noise(raw, words, out.b + one * j);
    }
  }

  void keep_rows(const Op& op, int k) {
    size_t one = Isa::noise_size(words_of(k));
    out.b = arena.take<Isa::Noise>(one * job.rank);
    for (int j = 0; arena.base && j < job.rank; ++j)
      for (int p = 0; p < kPairs; ++p)
        Isa::keep_noise(slice(op.leaf, p) + j, p, k, job.rank, out.b + one * j);
  }

  static uint32_t gather_word(const int8_t* src, int first, int n, int stride) {
    uint32_t word = 0;
    for (int i = 0; i < 4 && first + i < n; ++i)
      word |= static_cast<uint32_t>(static_cast<uint8_t>(src[(first + i) * stride])) << 8 * i;
    return word;
  }

  void load_a(const Op& op, int k, int outputs) {
    int r = job.rank, padded = tiles_of(outputs) * kTile;
    int8_t* dst = out.a = arena.take<int8_t>(static_cast<size_t>(r) * padded * kPairs);
    if (!arena.base) return;
    for (int j = 0; j < r; ++j, dst += static_cast<size_t>(padded) * kPairs) {
      const int8_t* src[kPairs];
      for (int p = 0; p < kPairs; ++p) src[p] = slice(op.leaf, p) + r * k + j;
      int o = 0;
      for (; r == 1 && o + 16 <= outputs; o += 16) {
        Isa::transpose(src, dst + o * kPairs);
        for (int p = 0; p < kPairs; ++p) src[p] += 16;
      }
      if (o < outputs) load_rest(src, outputs - o, r, (padded - o) * kPairs, dst + o * kPairs);
    }
  }

  // The same for what is left at the end, zero beyond it: `bytes` of at most 16 outputs at rank 1.
  static void load_rest(const int8_t* const* src, int outputs, int r, int bytes, int8_t* dst) {
    if (r > 1) {
      for (int o = 0; o < outputs; ++o)
        for (int p = 0; p < kPairs; ++p) dst[o * kPairs + p] = src[p][o * r];
      __builtin_memset(dst + outputs * kPairs, 0, static_cast<size_t>(bytes - outputs * kPairs));
      return;
    }
    int8_t rest[kPairs][16] = {}, turned[16 * kPairs];
    const int8_t* rows[kPairs];
    for (int p = 0; p < kPairs; ++p) {
      rows[p] = rest[p];
      __builtin_memcpy(rest[p], src[p], static_cast<size_t>(outputs));
    }
    Isa::transpose(rows, turned);
    __builtin_memcpy(dst, turned, static_cast<size_t>(bytes));
  }

  void keep_slices(const Op& op) {
    const int8_t** to = arena.take<const int8_t*>(kPairs);
    for (int p = 0; arena.base && p < kPairs; ++p) to[p] = slice(op.leaf, p);
    out.slices = to;
  }

  void load_vector(const Op& op) {
    int n = job.plan.leaves[op.leaf].rows;
    const int8_t* w = job.weights + job.plan.leaves[op.leaf].offset;
    int words = words_of(n);
    out.vector = arena.take<int8_t>(static_cast<size_t>(words) * 4 * kLanes);
    int8_t* rows = arena.take<int8_t>(static_cast<size_t>(words) * 4 * kLanes);
    if (!arena.base) return;
    const int8_t* src[kLanes];
    for (int p = 0; p < kPairs; ++p) {
      int8_t *plus = rows + p * words * 4, *minus = plus + kPairs * words * 4;
      src[p] = plus;
      src[p + kPairs] = minus;
      for (int i = n; i < words * 4; ++i) plus[i] = minus[i] = 0;
      if (job.starts && !silent(op)) {
        int shift = nodes() ? 4 + job.shifts[op.leaf] : job.shift;
        Isa::perturbed(w, slice(op.leaf, p), n, shift, plus, minus);
      } else {
        __builtin_memcpy(plus, w, static_cast<size_t>(n));
        __builtin_memcpy(minus, w, static_cast<size_t>(n));
      }
    }
    uint32_t* dst = reinterpret_cast<uint32_t*>(out.vector);
    Isa::transpose_words(src, words, dst, kLanes);
    Isa::transpose_words(src + kPairs, words, dst + kPairs, kLanes);
  }

  void place(const Op& op) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    if (leaf.cols == 0) return load_vector(op);
    out.by = scale(leaf.cols);
    if (!job.starts || silent(op)) return;
    if (op.kind == OpKind::features)  // the weights' noise is read where it lies
      return nodes() ? load_row(op, op.lists * leaf.cols) : void();
    if (nodes()) return op.kind == OpKind::embed ? load_row(op, leaf.cols) : load_node(op);
    load_b(op, leaf.cols);
    if (op.kind == OpKind::embed) return keep_slices(op);
    load_a(op, leaf.cols, leaf.rows);
    if (!Isa::kPairsOfOutputs || job.rank > 1 || op.kind == OpKind::sums) return;
    const int padded = tiles_of(leaf.rows) * kTile;
    out.pairs = arena.take<uint32_t>(static_cast<size_t>(padded) / 2 * kPairs);
    if (arena.base) Isa::pair_outputs(out.a, padded, up_of(job.shift), out.by.grouped, out.pairs);
  }

  // A on the outputs, in the scale of the sums: 2^-shift of the last bit for A = 1.
  void load_node(const Op& op) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int count = tiles_of(leaf.rows) * kTile * kPairs, root = isqrt(leaf.cols);
    const int by = job.shifts[op.leaf], half = by ? 1 << (by - 1) : 0;
    const bool narrow = (16 * root * 128 + half) >> by <= INT16_MAX;
    load_a(op, leaf.cols, leaf.rows);
    const int8_t* __restrict a = out.a;
    auto node = [=](int8_t n) { return (16 * root * n + half) >> by; };
    if (Isa::kPairsOfNodes && narrow && op.kind != OpKind::sums) {
      uint32_t* to = out.pairs = arena.take<uint32_t>(static_cast<size_t>(count) / 2);
      for (int o = 0; arena.base && o < count; o += 2 * kPairs, a += 2 * kPairs, to += kPairs)
        for (int p = 0; p < kPairs; ++p)
          to[p] = (static_cast<uint32_t>(node(a[p])) & 0xFFFF) |
                  static_cast<uint32_t>(node(a[p + kPairs])) << 16;
      return;
    }
    int32_t* dst = out.node = arena.take<int32_t>(static_cast<size_t>(count));
    for (int i = 0; arena.base && i < count; ++i) dst[i] = node(a[i]);
  }

  void load_row(const Op& op, int d) {
    int words = words_of(d), by = job.shifts[op.leaf];
    out.row = arena.take<uint32_t>(static_cast<size_t>(words) * kLanes);
    int8_t* rows = arena.take<int8_t>(static_cast<size_t>(words) * 4 * kLanes);
    if (!arena.base) return;
    const int8_t* src[kLanes];
    for (int p = 0; p < kPairs; ++p) {
      const int8_t* __restrict b = slice(op.leaf, p);
      int8_t* __restrict plus = rows + p * words * 4, * __restrict minus =
                                                          plus + kPairs * words * 4;
      src[p] = plus, src[p + kPairs] = minus;
      for (int k = 0; k < d; ++k) {
        const int n = rounded(b[k], by);
        plus[k] = static_cast<int8_t>(n), minus[k] = static_cast<int8_t>(clip(-n));
      }
      for (int k = d; k < 4 * words; ++k) plus[k] = minus[k] = 0;
    }
    Isa::transpose_words(src, words, out.row, kLanes);
    Isa::transpose_words(src + kPairs, words, out.row + kPairs, kLanes);
  }
};
