// Votes Z = sum_i f_i A_i B_i^T of one leaf as an int8 matrix product whose inner dimension is the
// pairs (times the rank), on the same dot-product tiles as the forward pass: f A in the place of
// the weights, 32 columns of B in the place of 32 members. Included like block.h.

constexpr int kVotePairs = 256;  // pair-ranks gathered at a time

struct Votes {
  const VoteJob& job;
  int8_t* a;             // packed tiles of f A: [O/8] x (8 biases, [pairs/4][8][4])
  uint32_t* b;           // [K/32][pairs/4][32] words of four pairs
  Isa::Prepared* panel;  // one 32-column panel of b, prepared
  alignas(64) int32_t acc[kTile][kLanes];

  Votes(const VoteJob& j, Arena& arena) : job(j) {
    size_t words = kVotePairs / 4;
    a = arena.take<int8_t>(static_cast<size_t>(tiles_of(job.leaf.rows)) * tile_bytes(words));
    b = arena.take<uint32_t>(panels() * words * kLanes);
    panel = arena.take<Isa::Prepared>(Isa::prepared_size(static_cast<int>(words)));
  }

  static size_t tile_bytes(size_t words) { return kTile * sizeof(int32_t) + words * kTile * 4; }
  size_t panels() const { return static_cast<size_t>((job.leaf.cols + kLanes - 1) / kLanes); }

  int32_t value(int8_t v) const { return job.signs ? (v > 0) - (v < 0) : v; }

  // Column `i` (of `words` * 4) of the gathered panel: pair's rank-j factors, or zeros.
  void gather(const int8_t* slice, int j, int32_t f, int i, int words) {
    int rows = job.leaf.rows, cols = job.leaf.cols, r = job.rank;
    const int8_t* src = slice + static_cast<size_t>(r) * cols + j;
    for (int o = 0; o < rows; ++o) {
      int8_t* tile = a + static_cast<size_t>(o / kTile) * tile_bytes(words);
      int32_t v = f * value(src[static_cast<size_t>(o) * r]);
      int32_t* bias = reinterpret_cast<int32_t*>(tile) + o % kTile;
      *bias -= 128 * v;
      tile[kTile * sizeof(int32_t) + (i / 4 * kTile + o % kTile) * 4 + i % 4] =
          static_cast<int8_t>(v);
    }
    int8_t* bytes = reinterpret_cast<int8_t*>(b);
    for (int k = 0; k < cols; ++k) {
      size_t word = (static_cast<size_t>(k / kLanes) * words + i / 4) * kLanes + k % kLanes;
      bytes[4 * word + i % 4] = static_cast<int8_t>(value(slice[static_cast<size_t>(k) * r + j]));
    }
  }

  void multiply(int words, int32_t* z) {
    int rows = job.leaf.rows, cols = job.leaf.cols;
    for (size_t p = 0; p < panels(); ++p) {
      Isa::prepare(b + p * words * kLanes, words, panel);
      int first = static_cast<int>(p) * kLanes, count = cols - first < kLanes ? cols - first : kLanes;
      for (int t = 0; t < tiles_of(rows); ++t) {
        Isa::dot(a + t * tile_bytes(words), panel, words, acc);
        for (int o = 0; o < kTile && t * kTile + o < rows; ++o) {
          int32_t* row = z + static_cast<size_t>(t * kTile + o) * cols + first;
          for (int m = 0; m < count; ++m)
            row[m] = static_cast<int32_t>(static_cast<uint32_t>(row[m]) +
                                          static_cast<uint32_t>(acc[o][m]));
        }
      }
    }
  }

  void matrix(int64_t first, int64_t last, int32_t* z) {
    int words = kVotePairs / 4, filled = 0;
    for (int64_t p = first; p < last; ++p) {
      if (job.fitness[p] == 0) continue;
      for (int j = 0; j < job.rank; ++j) {
        if (filled == 0) clear(words);
        gather(job.noise + job.starts[p], j, job.fitness[p], filled, words);
        if (++filled == kVotePairs) multiply(words, z), filled = 0;
      }
    }
    if (filled) multiply(words, z);
  }

  void clear(int words) {
    size_t bytes = static_cast<size_t>(tiles_of(job.leaf.rows)) * tile_bytes(words);
    __builtin_memset(a, 0, bytes);
    __builtin_memset(b, 0, panels() * words * kLanes * sizeof(uint32_t));
  }

  void vector(int64_t first, int64_t last, int32_t* z) {
    for (int64_t p = first; p < last; ++p) {
      const int8_t* src = job.noise + job.starts[p];
      for (int i = 0; i < job.leaf.rows; ++i) {
        int32_t product = value(src[2 * i]) * value(src[2 * i + 1]);
        z[i] = static_cast<int32_t>(static_cast<uint32_t>(z[i]) +
                                    static_cast<uint32_t>(job.fitness[p] * product));
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
