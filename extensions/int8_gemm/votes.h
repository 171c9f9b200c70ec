// Votes Z = sum_i f_i A_i B_i^T of one leaf as an int8 matrix product whose inner dimension is the
// pairs (times the rank), on the same dot-product tiles as the forward pass: f A in the place of
// the weights, 32 columns of B in the place of 32 members. Included like block.h.

constexpr int kVotePairs = 256;  // pair-ranks gathered at a time

struct Votes {
  const VoteJob& job;
  int8_t* a;                      // packed tiles of f A: [O/8] x (8 biases, [pairs/4][8][4])
  uint32_t* b;                    // [K/32][pairs/4][32] words of four pairs
  Isa::Prepared* panel;           // one 32-column panel of b, prepared
  int8_t *rows_a[4], *rows_b[4];  // four pairs' f A [O] and B [K], zero up to the next tile
  alignas(64) int32_t acc[kTile][kLanes];

  Votes(const VoteJob& j, Arena& arena) : job(j) {
    a = arena.take<int8_t>(tiles() * kTileBytes);
    b = arena.take<uint32_t>(panels() * kVoteWords * kLanes);
    panel = arena.take<Isa::Prepared>(Isa::prepared_size(kVoteWords));
    for (int i = 0; i < 4; ++i) {
      rows_a[i] = arena.take<int8_t>(tiles() * kTile);
      rows_b[i] = arena.take<int8_t>(panels() * kLanes);
    }
  }

  static constexpr int kVoteWords = kVotePairs / 4;
  static constexpr size_t kTileBytes = kTile * sizeof(int32_t) + kVoteWords * kTile * 4;
  size_t tiles() const { return static_cast<size_t>(tiles_of(job.leaf.rows)); }
  size_t panels() const { return static_cast<size_t>((job.leaf.cols + kLanes - 1) / kLanes); }

  // dst[i] = f * (v or sign v), v = src[i * stride].
  void row(const int8_t* src, int stride, int n, int f, int8_t* __restrict dst) const {
    if (stride == 1)
      for (int i = 0; i < n; ++i) dst[i] = static_cast<int8_t>(f * src[i]);
    else
      for (int i = 0; i < n; ++i)
        dst[i] = static_cast<int8_t>(f * src[static_cast<size_t>(i) * stride]);
    if (job.signs)
      for (int i = 0; i < n; ++i) dst[i] = static_cast<int8_t>((dst[i] > 0) - (dst[i] < 0));
  }

  // Interleaves the four rows into word `w` of every tile and panel.
  void pack(int w) {
    for (size_t t = 0; t < tiles(); ++t) {
      int32_t* bias = reinterpret_cast<int32_t*>(a + t * kTileBytes);
      uint32_t* words = reinterpret_cast<uint32_t*>(bias + kTile) + w * kTile;
      for (int o = 0; o < kTile; ++o) {
        size_t at = t * kTile + o;
        words[o] = word(rows_a, at);
        int32_t sum = rows_a[0][at] + rows_a[1][at] + rows_a[2][at] + rows_a[3][at];
        bias[o] = (w ? bias[o] : 0) - 128 * sum;
      }
    }
    for (size_t p = 0; p < panels(); ++p) {
      uint32_t* words = b + (p * kVoteWords + w) * kLanes;
      for (int k = 0; k < kLanes; ++k) words[k] = word(rows_b, p * kLanes + k);
    }
  }

  static uint32_t word(int8_t* const* rows, size_t at) {
    return static_cast<uint32_t>(static_cast<uint8_t>(rows[0][at])) |
           static_cast<uint32_t>(static_cast<uint8_t>(rows[1][at])) << 8 |
           static_cast<uint32_t>(static_cast<uint8_t>(rows[2][at])) << 16 |
           static_cast<uint32_t>(static_cast<uint8_t>(rows[3][at])) << 24;
  }

  void multiply(int words, int32_t* z) {
    int rows = job.leaf.rows, cols = job.leaf.cols;
    for (size_t p = 0; p < panels(); ++p) {
      Isa::prepare(b + p * kVoteWords * kLanes, words, panel);
      int first = static_cast<int>(p) * kLanes,
          count = cols - first < kLanes ? cols - first : kLanes;
      for (int t = 0; t < tiles_of(rows); ++t) {
        Isa::dot(a + t * kTileBytes, panel, words, acc);
        for (int o = 0; o < kTile && t * kTile + o < rows; ++o) {
          int32_t* __restrict to = z + static_cast<size_t>(t * kTile + o) * cols + first;
          if (count == kLanes)
            for (int m = 0; m < kLanes; ++m) to[m] = wrapping_sum(to[m], acc[o][m]);
          else
            for (int m = 0; m < count; ++m) to[m] = wrapping_sum(to[m], acc[o][m]);
        }
      }
    }
  }

  void clear_rows(int first) {
    for (int i = first; i < 4; ++i) {
      __builtin_memset(rows_a[i], 0, tiles() * kTile);
      __builtin_memset(rows_b[i], 0, panels() * kLanes);
    }
  }

  void matrix(int64_t first, int64_t last, int32_t* z) {
    int rows = job.leaf.rows, cols = job.leaf.cols, r = job.rank, filled = 0;
    clear_rows(0);
    for (int64_t p = first; p < last; ++p) {
      if (job.fitness[p] == 0) continue;
      const int8_t* slice = job.noise + job.starts[p];
      for (int j = 0; j < r; ++j) {
        row(slice + j, r, cols, 1, rows_b[filled % 4]);
        row(slice + static_cast<size_t>(r) * cols + j, r, rows, job.fitness[p], rows_a[filled % 4]);
        if (++filled % 4 == 0) pack(filled / 4 - 1);
        if (filled == kVotePairs) multiply(kVoteWords, z), filled = 0;
      }
    }
    if (filled == 0) return;
    clear_rows((filled + 3) % 4 + 1);
    if (filled % 4) pack(filled / 4);
    multiply((filled + 3) / 4, z);
  }

  void vector(int64_t first, int64_t last, int32_t* __restrict z) {
    for (int64_t p = first; p < last; ++p) {
      const int8_t* src = job.noise + job.starts[p];
      int f = job.fitness[p];
      for (int i = 0; i < job.leaf.rows; ++i) {
        int32_t v = src[2 * i] * src[2 * i + 1];
        z[i] = wrapping_sum(z[i], f * (job.signs ? (v > 0) - (v < 0) : v));
      }
    }
  }
};

static size_t vote_bytes(const VoteJob& job) {
  Arena arena{nullptr};
  Votes sizing(job, arena);
  return arena.used;
}

static void vote(const VoteJob& job, int64_t first, int64_t last, int32_t* z, void* scratch) {
  Arena arena{static_cast<char*>(scratch)};
  Votes votes(job, arena);
  if (job.leaf.cols)
    votes.matrix(first, last, z);
  else
    votes.vector(first, last, z);
}
