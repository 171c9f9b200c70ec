// Primitives of credit that an instruction set may replace, in portable C++ for the vectoriser to
// work on.
//
// A row is four values of 32 lanes, [32][4]: credit in int32, results and rounded credit in bytes.

constexpr int kRow = 4 * kLanes;
constexpr int32_t kBound = (1 << 22) - 1;  // of credit
constexpr int32_t kSumBound = 1 << 26;     // of what a matrix sends back

static inline int32_t bounded(int32_t v) { return clamp(v, -kBound, kBound); }

// 1 / (16 floor(sqrt K)) as a / 2^n, and by how much products are to be shifted right by then.
struct Reduced {
  int a, shift;
};

static inline Reduced reduced(int inputs, int by) {
  int d = 16 * isqrt(inputs), n = 35 - __builtin_clz(static_cast<unsigned>(d));
  return {static_cast<int>(((int64_t{2} << n) / d + 1) / 2), n - by};
}

// The head's errors, lane by lane four times: E >> shift times ratio is the probability; target is
// the first value of the word that has the lane's target at this place.
struct ErrorLanes {
  alignas(64) uint32_t ratio[kRow], shift[kRow];
  alignas(64) int32_t target[kRow];
};

struct PortableLearn {
  // A row of credit; where its result `y` is clipped it had no effect. y may be null, and `of` the
  // row itself.
  static void take(const int32_t* from, const int8_t* __restrict y, int32_t* of) {
    if (!y) return void(__builtin_memmove(of, from, kRow * sizeof *of));
    for (int i = 0; i < kRow; ++i) of[i] = y[i] == 127 || y[i] == -127 ? 0 : from[i];
  }

  // A row = or += credit where x is positive. `to` may be the credit itself.
  static void pass_positive(const int32_t* from, const int8_t* __restrict x, bool adds,
                            int32_t* to) {
    for (int i = 0; i < kRow; ++i) {
      const int32_t v = x[i] > 0 ? from[i] : 0;
      to[i] = adds ? bounded(to[i] + v) : v;
    }
  }

  // A row rounded to int8 by chance, of which `places` plus `first` are the words; its size.
  static int32_t round(const int32_t* __restrict of, const uint32_t* __restrict places,
                       uint32_t first, int h, int8_t* __restrict to) {
    int32_t size = 0;
    for (int i = 0; i < kRow; ++i) size += of[i] < 0 ? -of[i] : of[i];
    if (h == 0)
      for (int i = 0; i < kRow; ++i) to[i] = static_cast<int8_t>(clip(of[i]));
    else
      for (int i = 0; i < kRow; ++i) {
        int32_t chance = static_cast<int32_t>(mixed(places[i] + first) >> (32 - h));
        to[i] = static_cast<int8_t>(clip((of[i] + chance) >> h));
      }
    return size;
  }

  static int32_t scaled(int32_t r, Reduced by) {
    int32_t v = clamp(r, -kSumBound, kSumBound) * by.a;
    return by.shift >= 0 ? bounded(v >> by.shift) : bounded(bounded(v) * (1 << -by.shift));
  }

  // Two rows of credit = or += a tile of sums, scaled.
  static void spread(int32_t (*acc)[kLanes], Reduced by, bool adds, int32_t* __restrict to) {
    for (int o = 0; o < kTile; ++o)
      for (int m = 0; m < kLanes; ++m) acc[o][m] = scaled(acc[o][m], by);
    for (int half = 0; half < 2; ++half, to += kRow)
      for (int m = 0; m < kLanes; ++m)
        for (int o = 0; o < 4; ++o) {
          int32_t v = acc[4 * half + o][m];
          to[4 * m + o] = adds ? bounded(to[4 * m + o] + v) : v;
        }
  }

  // sum[4] = over the lanes of a row: credit, times a factor.
  static void vote(const int8_t* c, const int8_t* factor, int32_t* sum) {
    alignas(64) int32_t part[8] = {};
    for (int i = 0; i < kRow; i += 8)
      for (int j = 0; j < 8; ++j) part[j] += c[i + j] * factor[i + j];
    for (int j = 0; j < 4; ++j) sum[j] = part[j] + part[j + 4];
  }

  // The same without a factor.
  static void total(const int8_t* c, int32_t* sum) {
    alignas(64) int32_t part[8] = {};
    for (int i = 0; i < kRow; i += 8)
      for (int j = 0; j < 8; ++j) part[j] += c[i + j];
    for (int j = 0; j < 4; ++j) sum[j] = part[j] + part[j + 4];
  }

  // sum[m] = the sum of |x| over n values of every lane.
  static void magnitudes(const int8_t* x, int n, int32_t* sum) {
    alignas(64) int32_t part[kRow] = {};
    for (int w = 0; w < n / 4; ++w)
      for (int i = 0; i < kRow; ++i) {
        int32_t v = x[w * kRow + i];
        part[i] += v < 0 ? -v : v;
      }
    for (int i = 0; i < kRow; ++i) {
      int32_t v = (i & 3) < n % 4 ? x[n / 4 * kRow + i] : 0;
      part[i] += v < 0 ? -v : v;
    }
    for (int m = 0; m < kLanes; ++m)
      sum[m] = part[4 * m] + part[4 * m + 1] + part[4 * m + 2] + part[4 * m + 3];
  }

  // EXP2 of `words` rows of logits to 2^-bits, zero from value `rows` on: row by row with four
  // fraction bits to `to`, and all their sums over a lane's values, with four to `coarse`.
  static void powers(const int8_t* u, int rows, int words, const uint32_t* mantissa, int bits,
                     uint32_t* __restrict to, uint64_t* fine, uint64_t* coarse) {
    constexpr int kFitting = 128;  // words whose powers, below 2^24, fit 32 bits together
    for (int m = 0; m < kLanes; ++m) fine[m] = coarse[m] = 0;
    for (int first = 0; first < words; first += kFitting) {
      alignas(64) uint32_t sum[kRow] = {}, less[kRow] = {};
      for (int w = first; w < words && w < first + kFitting; ++w)
        for (int i = 0; i < kRow; ++i) {
          uint32_t v = static_cast<uint8_t>(u[w * kRow + i]) ^ 128u;
          uint32_t power = mantissa[v & 15] >> (31 - bits - static_cast<int>(v >> 4));
          power = 4 * w + (i & 3) < rows ? power : 0;
          to[w * kRow + i] = power >> (bits - 4);
          sum[i] += power, less[i] += power >> (bits - 4);
        }
      for (int i = 0; i < kRow; ++i) fine[i / 4] += sum[i], coarse[i / 4] += less[i];
    }
  }

  // 127 (1 at the target less the probability), rounded by chance; its size.
  static int64_t errors(const int8_t* u, const uint32_t* powers, int words, const ErrorLanes& by,
                        const uint32_t* places, uint32_t first, int8_t* __restrict to) {
    int64_t size = 0;
    for (int w = 0; w < words; ++w, first += 4) {
      int32_t sum = 0;
      for (int i = 0; i < kRow; ++i) {
        int32_t v = u[w * kRow + i];
        uint32_t chance = mixed(places[i] + first) >> 16;
        uint32_t part = (powers[w * kRow + i] >> by.shift[i]) * by.ratio[i] >> 8;
        int32_t e = (by.target[i] == 4 * w ? 127 : 0) - static_cast<int32_t>((part + chance) >> 16);
        int32_t out = (v == 127) & (e > 0), in = (v == -127) & (e < 0);
        e = out | in ? 0 : e;
        sum += e < 0 ? -e : e;
        to[w * kRow + i] = static_cast<int8_t>(e);
      }
      size += sum;
    }
    return size;
  }

  // Words of four values [32 lanes] -> words of four lanes: four for every group of lanes, `stride`
  // apart from group to group.
  static void turn(const uint32_t* from, uint32_t* to, int stride) {
    for (int g = 0; g < kLanes / 4; ++g, from += 4, to += stride) {
      // Two rounds of exchanges: bytes of neighbours, then halves.
      uint32_t ab = (from[0] & 0x00FF00FFu) | (from[1] & 0x00FF00FFu) << 8;
      uint32_t ba = (from[0] >> 8 & 0x00FF00FFu) | (from[1] & 0xFF00FF00u);
      uint32_t cd = (from[2] & 0x00FF00FFu) | (from[3] & 0x00FF00FFu) << 8;
      uint32_t dc = (from[2] >> 8 & 0x00FF00FFu) | (from[3] & 0xFF00FF00u);
      to[0] = (ab & 0xFFFFu) | cd << 16;
      to[1] = (ba & 0xFFFFu) | dc << 16;
      to[2] = ab >> 16 | (cd & 0xFFFF0000u);
      to[3] = ba >> 16 | (dc & 0xFFFF0000u);
    }
  }
};

// votes[o][m] += acc[o][m].
static inline void add_sums(const int32_t (*acc)[kLanes], int outputs, int inputs, int32_t* votes,
                            int64_t stride) {
  for (int o = 0; o < outputs; ++o, votes += stride) {
    int32_t* __restrict to = votes;
    for (int m = 0; m < inputs; ++m) to[m] = wrapping_sum(to[m], acc[o][m]);
  }
}

constexpr int kMostVoteWords = 256;  // of a tile or panel of votes

// The columns of a matrix [rows, cols], eight in a tile as if they were outputs of a linear leaf.
static inline size_t turned_bytes(int rows, int cols) {
  return static_cast<size_t>(tiles_of(cols)) * PortableIsa::tile_bytes(words_of(rows));
}

// Sixteen columns of so many rows of a matrix, zero beyond the `there` rows and `columns` columns
// that it has: where they lie, or copied.
template <int count>
struct Piece {
  static constexpr int kColumns = 16;
  const int8_t* row[count];
  int8_t copy[count][kColumns] = {};

  Piece(const int8_t* src, int64_t stride, int there, int columns) {
    for (int j = 0; j < count; ++j, src += stride) {
      row[j] = j < there && columns >= kColumns ? src : copy[j];
      if (j < there && columns < kColumns)
        __builtin_memcpy(copy[j], src, static_cast<size_t>(columns));
    }
  }
};

template <typename Isa>
static void pack_turned(const int8_t* src, int rows, int cols, int8_t* to) {
  const int words = words_of(rows);
  const size_t tile = PortableIsa::tile_bytes(words);
  for (int w = 0; w < words; ++w, src += 4 * static_cast<int64_t>(cols)) {
    for (int k = 0; k < cols; k += 2 * kTile) {
      const Piece<4> piece(src + k, cols, rows - 4 * w, cols - k);
      uint32_t none[kTile];
      auto word = [&](int i) {
        return reinterpret_cast<uint32_t*>(to + static_cast<size_t>(i) * tile) + (1 + w) * kTile;
      };
      const bool both = cols - k > kTile;
      Isa::interleave(piece.row, 0, 0, word(k / kTile), both ? word(k / kTile + 1) : none);
    }
  }
  for (int i = 0; i < tiles_of(cols); ++i) Isa::bias(to + static_cast<size_t>(i) * tile, words);
}

// Products for votes, and of credit with the matrices that pass it on.
//
// `count` multiplies tiles of credit or of noise, [n/4][8 outputs][4], by a panel of inputs or of
// noise, [n/4][32 inputs]; `send` multiplies tiles of a matrix, packed by `pack_turned`, by a panel
// of credit [O/4][32]. Panels and tiles are closed once and used many times. `add` adds what
// `count` counts to votes, whose rows lie `stride` apart. kTiles: tiles that are multiplied at a
// time; where there are more than one, `add_panel` and `send_all` do it, from what is packed by
// `pack_back`, and what a tile takes is given to `close_tile`.
template <typename Isa>
struct PortableProducts {
  using Panel = typename Isa::Prepared;

  static size_t panel_size(int words) { return Isa::prepared_size(words); }
  static size_t tile_bytes(int words) { return PortableIsa::tile_bytes(words); }

  static void close_credit(const uint32_t* credit, int words, Panel* to) {
    Isa::prepare(credit, words, to);
  }
  static void send(const int8_t* tile, const Panel* credit, int words, int32_t (*acc)[kLanes]) {
    Isa::dot(tile, credit, words, acc);
  }

  static constexpr int kTiles = 1;

  static void close_tile(int8_t* tile, int words, size_t) { Isa::bias(tile, words); }
  static void close_inputs(const uint32_t* columns, int words, Panel* to) {
    Isa::prepare(columns, words, to);
  }
  static void count(const int8_t* tile, const Panel* inputs, int words, int32_t (*acc)[kLanes]) {
    Isa::dot(tile, inputs, words, acc);
  }
  static void add(const int8_t* tile, const Panel* inputs, int words, int32_t* votes,
                  int64_t stride) {
    alignas(64) int32_t acc[kTile][kLanes];
    count(tile, inputs, words, acc);
    add_sums(acc, kTile, kLanes, votes, stride);
  }
};
