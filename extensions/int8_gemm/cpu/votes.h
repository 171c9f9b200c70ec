// Votes Z = sum_i f_i A_i B_i^T of one leaf as an int8 matrix product whose inner dimension is the
// pairs (times the rank): f A in the place of the weights, 32 columns of B in the place of 32
// members.

constexpr int kVotePairs = 256;  // pair-ranks gathered at a time
static_assert(kVotePairs / 4 <= kMostVoteWords);
constexpr int kAhead = 24;  // pairs

// Asks for n bytes of a later pair's slice from `at` on, up to the pair before `last`: slices lie
// anywhere in the table.
static inline void expect(const VoteJob& job, int64_t p, int64_t last, int64_t at, int64_t n) {
  if (p + kAhead < last) prefetch(job.noise + job.starts[p + kAhead] + at, n);
}

// Packed tiles of so many rows, of eight each, with those that are multiplied beside the last.
static inline size_t packed_tiles(int rows) {
  constexpr int kTiles = Products::kTiles;
  return static_cast<size_t>((tiles_of(rows) + kTiles - 1) / kTiles * kTiles);
}

// Z [rows, cols] += products of packed tiles of eight rows with a closed panel of the 32 columns
// from `first` on. What one of them alone adds to is asked for while it is multiplied. A template,
// so that units have the one way or the other.
template <typename By = Products>
static void count_tiles(const int8_t* tiles, size_t tile_bytes, const typename By::Panel* panel,
                        int words, int rows, int cols, int first, int32_t* z) {
  const int count = cols - first < kLanes ? cols - first : kLanes;
  if constexpr (By::kTiles > 1)
    By::add_panel(tiles, tile_bytes, panel, words, rows, count, z + first, cols);
  else
    for (int row = 0; row < rows; row += kTile, tiles += tile_bytes) {
      const int n = rows - row < kTile ? rows - row : kTile;
      int32_t* to = z + static_cast<int64_t>(row) * cols + first;
      for (int o = 0; o < n; ++o) {
        __builtin_prefetch(to + static_cast<int64_t>(o) * cols, 1);
        __builtin_prefetch(to + static_cast<int64_t>(o) * cols + count - 1, 1);
      }
      if (n == kTile && count == kLanes) {
        By::add(tiles, panel, words, to, cols);
        continue;
      }
      alignas(64) int32_t acc[kTile][kLanes];
      By::count(tiles, panel, words, acc);
      add_sums(acc, n, count, to, cols);
    }
}

struct Votes {
  const VoteJob& job;
  int8_t* a;                            // packed tiles of f A: [O/8] x (8 biases, [pairs/4][8][4])
  uint32_t* b;                          // [K/32][pairs/4][32] words of four pairs
  Products::Panel* panel;               // one 32-column panel of b, closed
  int8_t *own_a, *own_b;                // [4] rows that do not lie in the table as they are needed
  const int8_t *rows_a[4], *rows_b[4];  // four pair-ranks' A [O] and B [K]
  uint32_t negative;                    // bytes of all ones where a pair's fitness is -1

  Votes(const VoteJob& j, Arena& arena) : job(j) {
    a = arena.take<int8_t>(packed_tiles(job.leaf.rows) * tile_bytes());
    b = arena.take<uint32_t>(panels() * kVoteWords * kLanes);
    panel = arena.take<Products::Panel>(Products::panel_size(kVoteWords));
    own_a = arena.take<int8_t>(4 * static_cast<size_t>(job.leaf.rows));
    own_b = arena.take<int8_t>(4 * static_cast<size_t>(job.leaf.cols));
  }

  static constexpr int kVoteWords = kVotePairs / 4;
  static size_t tile_bytes() { return Products::tile_bytes(kVoteWords); }
  size_t tiles() const { return static_cast<size_t>(tiles_of(job.leaf.rows)); }
  size_t panels() const { return static_cast<size_t>((job.leaf.cols + kLanes - 1) / kLanes); }

  // n bytes of noise, every `rank`-th from src: in place if possible, else in `own`.
  const int8_t* row(const int8_t* src, int n, int8_t* __restrict own) const {
    if (job.rank == 1 && !job.signs) return src;
    for (int i = 0; i < n; ++i) own[i] = src[static_cast<size_t>(i) * job.rank];
    if (job.signs)
      for (int i = 0; i < n; ++i) own[i] = static_cast<int8_t>((own[i] > 0) - (own[i] < 0));
    return own;
  }

  void take_credit(int slot, int64_t p) {
    rows_b[slot] = job.credits + p * job.credit_stride;
    rows_a[slot] = job.noise + job.starts[p] + job.a_at;
  }

  void take(int slot, const int8_t* slice, int j) {
    size_t rows = static_cast<size_t>(job.leaf.rows), cols = static_cast<size_t>(job.leaf.cols);
    const int8_t* from = slice + static_cast<size_t>(job.rank) * cols + j;
    rows_b[slot] = row(slice + j, job.leaf.cols, own_b + slot * cols);
    rows_a[slot] = row(from, job.leaf.rows, own_a + slot * rows);
  }

  void clear(int slot) {
    size_t rows = static_cast<size_t>(job.leaf.rows), cols = static_cast<size_t>(job.leaf.cols);
    int8_t *to_a = own_a + slot * rows, *to_b = own_b + slot * cols;
    __builtin_memset(to_a, 0, rows);
    __builtin_memset(to_b, 0, cols);
    rows_a[slot] = to_a, rows_b[slot] = to_b;
  }

  // Words of the bytes of four rows of n: those from `at` on, a multiple of eight, to `to(at)`.
  template <typename To>
  static inline __attribute__((always_inline)) void interleave(const int8_t* const* rows, int n,
                                                               uint32_t negative, To to) {
    const int8_t* const src[4] = {rows[0], rows[1], rows[2], rows[3]};
    int at = 0;
    for (; at + 16 <= n; at += 16) Isa::interleave(src, at, negative, to(at), to(at + kTile));
    if (at == n) return;
    int8_t tail[4][16] = {};
    uint32_t spare[kTile];
    const int8_t* const rest[4] = {tail[0], tail[1], tail[2], tail[3]};
    for (int i = 0; i < 4; ++i) __builtin_memcpy(tail[i], src[i] + at, static_cast<size_t>(n - at));
    Isa::interleave(rest, 0, negative, to(at), n - at > kTile ? to(at + kTile) : spare);
  }

  // Interleaves the four rows into word `w` of every tile and panel.
  void pack(int w) {
    int8_t* const tile = a + (w + 1) * kTile * 4;
    const size_t step = tile_bytes();
    interleave(rows_a, job.leaf.rows, negative, [&](int o) {
      return reinterpret_cast<uint32_t*>(tile + static_cast<size_t>(o / kTile) * step);
    });
    uint32_t* const word = b + w * kLanes;
    interleave(rows_b, job.leaf.cols, 0, [&](int k) {
      return word + static_cast<size_t>(k / kLanes) * kVoteWords * kLanes + k % kLanes;
    });
    negative = 0;
  }

  void multiply(int words, int32_t* z) {
    for (size_t t = 0; t < tiles(); ++t)
      Products::close_tile(a + t * tile_bytes(), words, tile_bytes());
    for (size_t p = 0; p < panels(); ++p) {
      Products::close_inputs(b + p * kVoteWords * kLanes, words, panel);
      count_tiles(a, tile_bytes(), panel, words, job.leaf.rows, job.leaf.cols,
                  static_cast<int>(p) * kLanes, z);
    }
  }

  void matrix(int64_t first, int64_t last, int32_t* z) {
    int r = job.rank, filled = 0;
    negative = 0;
    for (int64_t p = first; p < last; ++p) {
      expect(job, p, last, 0, slice_bytes(job.leaf, job.rank));
      if (job.fitness && job.fitness[p] == 0) continue;
      for (int j = 0; j < r; ++j) {
        job.credits ? take_credit(filled % 4, p) : take(filled % 4, job.noise + job.starts[p], j);
        if (job.fitness && job.fitness[p] < 0) negative |= 255u << 8 * (filled % 4);
        if (++filled % 4 == 0) pack(filled / 4 - 1);
        if (filled == kVotePairs) multiply(kVoteWords, z), filled = 0;
      }
    }
    if (filled == 0) return;
    for (int slot = filled % 4; slot % 4; ++slot) clear(slot);
    if (filled % 4) pack(filled / 4);
    multiply((filled + 3) / 4, z);
  }

  void vector(int64_t first, int64_t last, int32_t* __restrict z) {
    for (int64_t p = first; p < last; ++p) {
      expect(job, p, last, 0, slice_bytes(job.leaf, job.rank));
      int f = job.fitness[p];
      if (f) products(job.noise + job.starts[p], f, z);
    }
  }

  // z[i] += f n[2 i] n[2 i + 1], the two bytes read as one little-endian number.
  void products(const int8_t* n, int f, int32_t* __restrict z) {
    for (int i = 0; i < job.leaf.rows; ++i) {
      uint16_t two;
      __builtin_memcpy(&two, n + 2 * i, 2);
      int32_t v = static_cast<int8_t>(two & 255) * static_cast<int8_t>(two >> 8);
      if (job.signs) v = (v > 0) - (v < 0);
      z[i] = wrapping_sum(z[i], f * v);
    }
  }
};

// Votes of token credit that are no product of matrices.
struct CreditVotes {
  const VoteJob& job;

  const int8_t* slice(int64_t p) const { return job.noise + job.starts[p]; }

  // Rows of an embedding: those of the tokens read.
  void tokens(int64_t first, int64_t last, int32_t* z) const {
    int T = job.tokens_per_member, cols = job.leaf.cols;
    for (int64_t p = first; p < last; ++p) {
      const int32_t* tokens = job.tokens + 2 * p / job.readers * T;
      expect(job, p, last, 0, cols);
      for (int t = 0; t < T; ++t) {
        int32_t* __restrict row = z + int64_t{tokens[t]} * cols;
        const int8_t* __restrict b = slice(p);
        const int c = job.credits[p * job.credit_stride + t];
        if (!c) continue;
        for (int k = 0; k < cols; ++k)
          row[k] = wrapping_sum(row[k], static_cast<int16_t>(c * b[k]));  // of 15 bits
      }
    }
  }

  // Rows of features: those that were active, in every list with noise of its own.
  void features(int64_t first, int64_t last, int32_t* z) const {
    for (int64_t p = first; p < last; ++p)
      for (int t = 0; t < job.tokens_per_member; ++t) {
        int c = job.credits[p * job.credit_stride + t];
        if (!c) continue;
        const int32_t* row = job.features + (2 * p * job.tokens_per_member + t) * job.indices;
        for (int i = 0; i < job.lists * job.active; ++i)
          if (row[i] >= 0) feature(row[i], i / job.active, c, slice(p), z);
      }
  }

  void feature(int index, int list, int c, const int8_t* slice, int32_t* z) const {
    int cols = job.leaf.cols;
    if (!job.nodes) c = clip((c * slice[cols + index]) >> 4);
    const int8_t* __restrict b = slice + (job.nodes ? list * cols : 0);
    int32_t* __restrict to = z + int64_t{index} * cols;
    for (int k = 0; k < cols; ++k) to[k] = wrapping_sum(to[k], c * b[k]);
  }

  void scalar(int64_t first, int64_t last, int32_t* __restrict z) const {
    const int at = job.a_at < 0 ? 0 : job.a_at, width = job.a_at < 0 ? 2 : 1;
    for (int64_t p = first; p < last; ++p) {
      const int8_t* __restrict n = slice(p) + at;
      expect(job, p, last, at, width * job.leaf.rows);
      const int c = job.credits[p * job.credit_stride];
      if (job.a_at < 0)
        for (int i = 0; i < job.leaf.rows; ++i)
          z[i] = wrapping_sum(z[i], c * static_cast<int16_t>(n[2 * i] * n[2 * i + 1]));
      else
        for (int i = 0; i < job.leaf.rows; ++i)
          z[i] = wrapping_sum(z[i], static_cast<int16_t>(c * n[i]));
    }
  }
};

// Whether votes are added up where they go, without memory of their own.
static bool in_place(CreditKind kind) {
  return kind == CreditKind::tokens || kind == CreditKind::features || kind == CreditKind::scalar;
}

static size_t vote_bytes(const VoteJob& job) {
  if (in_place(job.kind)) return 0;
  Arena arena{nullptr};
  Votes sizing(job, arena);
  return arena.used;
}

static void vote(const VoteJob& job, int64_t first, int64_t last, int32_t* z, void* scratch) {
  if (job.kind == CreditKind::tokens) return CreditVotes{job}.tokens(first, last, z);
  if (job.kind == CreditKind::features) return CreditVotes{job}.features(first, last, z);
  if (job.kind == CreditKind::scalar) return CreditVotes{job}.scalar(first, last, z);
  [[maybe_unused]] const Isa::Session session;
  Arena arena{static_cast<char*>(scratch)};
  Votes votes(job, arena);
  if (job.leaf.cols)
    votes.matrix(first, last, z);
  else
    votes.vector(first, last, z);
}
