// What members are shown beside tokens and what the caller has of every row, in the registers'
// layout.

// Rows of bytes, one per lane, to words [n/4][32], zero beyond n.
static inline void gather(const int8_t* const* src, int n, uint32_t* dst) {
  int whole = n / 4, rest = n % 4;
  Isa::transpose_words(src, whole, dst, kLanes);
  Isa::transpose_words(src + kPairs, whole, dst + kPairs, kLanes);
  if (!rest) return;
  for (int m = 0; m < kLanes; ++m) {
    const uint8_t* last = reinterpret_cast<const uint8_t*>(src[m] + 4 * whole);
    uint32_t word = last[0];
    if (rest > 1) word |= uint32_t{last[1]} << 8;
    if (rest > 2) word |= uint32_t{last[2]} << 16;
    dst[whole * kLanes + m] = word;
  }
}

// Words [n/4][stride] to rows of n bytes, of the first `lanes` lanes; those whose row is null are
// left out.
static inline void scatter(const uint32_t* words, int n, int8_t* const* dst, int lanes = kLanes,
                           int stride = kLanes) {
  alignas(64) uint32_t turned[kLanes][kPairs];
  int w = 0;
  for (; w + kPairs <= n / 4; w += kPairs) {
    const int8_t* src[kPairs];
    for (int i = 0; i < kPairs; ++i)
      src[i] = reinterpret_cast<const int8_t*>(words + (w + i) * stride);
    Isa::transpose_words(src, lanes, turned[0], kPairs);  // a lane is a word of these rows
    for (int m = 0; m < lanes; ++m)
      if (dst[m]) __builtin_memcpy(dst[m] + 4 * w, turned[m], sizeof turned[m]);
  }
  for (; w < n / 4; ++w)
    for (int m = 0; m < lanes; ++m)
      if (dst[m]) __builtin_memcpy(dst[m] + 4 * w, words + w * stride + m, 4);
  for (int m = 0; n % 4 && m < lanes; ++m)
    if (dst[m])
      __builtin_memcpy(dst[m] + 4 * w, words + w * stride + m, static_cast<size_t>(n % 4));
}

// y = max(x, low) on `count` bytes, whole words of all lanes; y may be x.
static inline void at_least(const int8_t* x, int8_t low, int count, int8_t* y) {
#if defined(__AVX512BW__)
  constexpr int kStep = 64;
#elif defined(__AVX2__)
  constexpr int kStep = 32;
#else
  constexpr int kStep = 16;
#endif
  // Not moved by memcpy, which GCC does by halves.
  using Bytes __attribute__((vector_size(kStep), aligned(1), may_alias)) = int8_t;
  const Bytes least = Bytes{} + low;
  for (int i = 0; i < count; i += kStep) {
    const Bytes v = *reinterpret_cast<const Bytes*>(x + i);
    *reinterpret_cast<Bytes*>(y + i) = v < least ? least : v;
  }
}

// y = a's na bytes, then b's nb; y is neither of them.
static inline void concat(const uint32_t* __restrict a, int na, const uint32_t* __restrict b,
                          int nb, uint32_t* __restrict y) {
  constexpr size_t kRow = kLanes * sizeof(uint32_t);
  int words_b = words_of(nb), left = 8 * (na % 4), right = 32 - left;
  __builtin_memcpy(y, a, static_cast<size_t>(words_of(na)) * kRow);
  y += na / 4 * kLanes;
  if (!left) {
    __builtin_memcpy(y, b, static_cast<size_t>(words_b) * kRow);
    return;
  }
  // Where a ends within a word, b's words lie across two.
  const uint32_t kept = (1u << left) - 1;
  for (int m = 0; m < kLanes; ++m) y[m] = (y[m] & kept) | b[m] << left;
  for (int w = 1; w < words_of(na % 4 + nb); ++w) {
    y += kLanes;
    for (int m = 0; m < kLanes; ++m) y[m] = b[m] >> right;
    b += kLanes;
    for (int m = 0; w < words_b && m < kLanes; ++m) y[m] |= b[m] << left;
  }
}

// Sums of the rows of sparse features, for every lane.
struct Features : Members {
  int16_t* sum;    // [all lists' values]
  int32_t* a;      // [lists][r]: sums of A over the features of a list
  int8_t* values;  // [32][all lists' values]
  int32_t* room;   // [lists][kListRoom]
  ActiveRows active[kLists];
  int widest = 0;

  Features(const Members& who, Arena& arena) : Members(who) {
    for (int i = 0; i < job.plan.stage_count; ++i)
      for (int j = 0; j < job.plan.stages[i].op_count; ++j) {
        const Op& op = job.plan.stages[i].ops[j];
        if (op.kind != OpKind::features) continue;
        int n = op.lists * job.plan.leaves[op.leaf].cols;
        widest = n > widest ? n : widest;
      }
    if (!widest) return;
    sum = arena.take<int16_t>(static_cast<size_t>(widest));
    a = arena.take<int32_t>(static_cast<size_t>(kLists) * job.rank);
    values = arena.take<int8_t>(static_cast<size_t>(widest) * kLanes);
    room = arena.take<int32_t>(static_cast<size_t>(kLists) * kListRoom);
  }

  // Words of y = clip((sum + noise) >> shift), the noise being that of the weights. Members of a
  // pair or group often have the same features, and absent lanes those of the last one: what
  // follows from these alone is found once.
  void run(const Op& op, int t, uint32_t* y) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int n = op.lists * leaf.cols;
    size_t bytes = static_cast<size_t>(op.lists) * op.active * sizeof(int32_t);
    const int8_t* src[kLanes];
    const int32_t* before = nullptr;
    for (int i = 0; i < kLanes; ++i) {
      int lane = i / 2 + i % 2 * kPairs;  // members in order
      const int32_t* row =
          job.features + (clamped(lane) * job.tokens_per_member + t) * job.plan.indices + op.first;
      const bool shares = job.starts || member(lane) >= job.members;
      bool same = shares && before && !__builtin_memcmp(row, before, bytes);
      before = row;
      int8_t* out = values + static_cast<size_t>(lane) * widest;
      src[lane] = out;
      if (!same)
        for (int l = 0; l < op.lists; ++l) {
          active[l] = Isa::active_rows(row + l * op.active, op.active, room + l * kListRoom);
          Isa::sum_rows(job.weights + leaf.offset, words_of(leaf.cols) * 4, active[l], leaf.cols,
                        sum + l * leaf.cols);
        }
      if (rank()) {
        if (!same || i % 2 == 0) project(op, slice(op.leaf, lane % kPairs));
        for (int l = 0; l < op.lists; ++l) perturb(op, lane, l, out + l * leaf.cols);
      } else if (same) {
        src[lane] = src[(i - 1) / 2 + (i - 1) % 2 * kPairs];
      } else {
        Isa::clip_sums(sum, n, op.shift, out);
      }
    }
    gather(src, n, y);
  }

  // Sums of the pair's A over the features of every list.
  void project(const Op& op, const int8_t* slice) const {
    int r = job.rank;
    const int8_t* factors = slice + int64_t{r} * job.plan.leaves[op.leaf].cols;
    for (int l = 0; l < op.lists; ++l)
      for (int j = 0; j < r; ++j) {
        const auto [row, count] = active[l];
        int32_t total = 0;
        for (int i = 0; i < count; ++i) total += factors[int64_t{row[i]} * r + j];
        a[l * r + j] = total;
      }
  }

  // One list's values with a lane's noise B a; B lies in the slice as [values][r].
  void perturb(const Op& op, int lane, int l, int8_t* __restrict out) const {
    int cols = job.plan.leaves[op.leaf].cols, r = job.rank;
    const int8_t* __restrict b = slice(op.leaf, lane % kPairs);
    const int16_t* __restrict of = sum + l * cols;
    const int32_t* __restrict factor = a + l * r;
    const int32_t sign = lane < kPairs ? 1 : -1, down = job.shift, by = op.shift;
    if (r == 1) {
      const int32_t once = sign * factor[0];
      for (int k = 0; k < cols; ++k)
        out[k] = static_cast<int8_t>(clip((of[k] + ((once * b[k]) >> down)) >> by));
      return;
    }
    for (int k = 0; k < cols; ++k) {
      uint32_t noise = 0;
      for (int j = 0; j < r; ++j) noise += static_cast<uint32_t>(sign * factor[j] * b[k * r + j]);
      int32_t perturbed = wrapping_sum(of[k], static_cast<int32_t>(noise) >> down);
      out[k] = static_cast<int8_t>(clip(perturbed >> by));
    }
  }
};
