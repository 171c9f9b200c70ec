// Update rules on a part of a leaf, in portable C++ for the vectoriser to work on;
// docs/estimators.md has the arithmetic.

static inline int64_t move_by_sign(const SignLeaf& leaf, int64_t first, int64_t last) {
  const int32_t* __restrict votes = leaf.votes, above = leaf.above, below = leaf.below;
  const int8_t* __restrict from = leaf.from;
  int8_t* __restrict to = leaf.to;
  int32_t moved = 0;
  for (int64_t i = first; i < last; ++i) {
    int32_t up = (votes[i] > above) & (from[i] != 127);
    int32_t down = (votes[i] < below) & (from[i] != -127);
    to[i] = static_cast<int8_t>(from[i] + up - down);
    moved += up | down;
  }
  return moved;
}

struct PortableAdam {
  static constexpr int32_t kVote = 1 << 26, kHalf = 1 << 15, kFine = (127 << 16) + kHalf - 1;

  static int64_t scaled(int64_t v, int64_t by) { return v < 0 ? -(-v * by >> 8) : v * by >> 8; }

  // floor(sqrt(s^2 243/256 + z^2 13/256)), by parts below 2^63.
  static int64_t root(int64_t s, int64_t z) {
    int64_t old = s * s;
    int64_t square = (old >> 8) * 243 + ((old & 255) * 243 >> 8) + (z * z >> 8) * 13;
    int64_t r = static_cast<int64_t>(__builtin_sqrt(static_cast<double>(square)));
    r -= r * r > square;
    return r + ((r + 1) * (r + 1) <= square);
  }

  static int32_t moved(int32_t fine, int64_t change, int64_t decay) {
    int64_t shrunk = fine < 0 ? -(-int64_t{fine} * decay >> 24) : int64_t{fine} * decay >> 24;
    int64_t v = fine - shrunk + change;
    return static_cast<int32_t>(v < -kFine ? -kFine : v > kFine ? kFine : v);
  }

  static int64_t part(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor, bool) {
    const auto& [from, to, votes, n, decay] = leaf;
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
      int64_t z = int64_t{clamp(votes[i], -kVote, kVote)} * 16;
      int64_t mean = scaled(from.mean[i], 230) + scaled(z, 26), size = root(from.size[i], z);
      int64_t step = (mean < 0 ? -mean : mean) * factor / (size < 1 ? 1 : size);
      int64_t change = mean < 0 ? -step : step;
      to.mean[i] = static_cast<int32_t>(mean), to.size[i] = static_cast<int32_t>(size);
      to.fine[i] = moved(from.fine[i], change, decay);
      if (from.feedback) to.feedback[i] = moved(from.feedback[i], change, decay);
      int8_t weight = static_cast<int8_t>((to.fine[i] + kHalf) >> 16);
      count += weight != from.weights[i];
      to.weights[i] = weight;
    }
    return count;
  }
};

static inline int64_t add_votes(const MasterLeaf& leaf, int64_t first, int64_t last) {
  const int32_t* __restrict votes = leaf.votes;
  const int32_t* __restrict fine = leaf.fine;
  const int8_t* __restrict weights = leaf.weights;
  int32_t* __restrict new_fine = leaf.new_fine;
  int8_t* __restrict new_weights = leaf.new_weights;
  const uint64_t factor = static_cast<uint64_t>(leaf.factor);
  int64_t count = 0;
  for (int64_t i = first; i < last; ++i) {
    // Unsigned, as NumPy's integers wrap.
    const uint64_t product = static_cast<uint64_t>(int64_t{votes[i]}) * factor;
    new_fine[i] = PortableAdam::moved(fine[i], static_cast<int64_t>(product) >> 24, leaf.decay);
    const int8_t weight = static_cast<int8_t>((new_fine[i] + PortableAdam::kHalf) >> 16);
    count += weight != weights[i];
    new_weights[i] = weight;
  }
  return count;
}

// Rule `whitened` on rows of a leaf, and the next whitening matrix of a block of its inputs.
//
// Numbers are integers in doubles, which hold them exactly, as in eggroll/evolution/whitening.py;
// quotients are rounded as there.
struct Whitening {
  static constexpr int kBlock = kWhitenedInputs, kTop = 32767;
  static constexpr int kHalf = PortableAdam::kHalf, kFine = PortableAdam::kFine;
  static constexpr double kMostScale = 0x1p31, kSteps = 0x1.8p17;
  static constexpr double kOne = 65536, kMostP = (1 << 19) - 1, kMostExcess = 1 << 22;

#ifdef __AVX512F__
  static constexpr int kWide = 8, kColumns = 4;
#elif defined(__AVX__)
  static constexpr int kWide = 4, kColumns = 2;
#else
  static constexpr int kWide = 2, kColumns = 4;
#endif
  static constexpr int kRows = 4;
  typedef double Wide __attribute__((vector_size(kWide * sizeof(double))));

  struct Square {
    alignas(64) double at[kBlock][kBlock];
  };
  struct Room {
    Square a, b, c, d;  // and behind them kWhitenedRows rows of u, and as many of y
  };
  static_assert(sizeof(Room) == kWhiteningRoom);

  static double bounded(double v, double most) {
    const double least = v > -most ? v : -most;
    return least < most ? least : most;
  }

  // out[i][j] = sum over k < n of a(i, k) b[k][j], where a(i, k) lies i by_row + k by_k after a:
  // `rows` rows, rounded up to kRows, of kBlock columns.
  static void multiply(const double* a, int64_t by_row, int64_t by_k, const Square& b, int n,
                       int rows, Square& out) {
    for (int i = 0; i < rows; i += kRows)
      for (int j = 0; j < kBlock; j += kColumns * kWide) {
        Wide sum[kRows][kColumns] = {};
        const double* from = a + i * by_row;
        for (int k = 0; k < n; ++k, from += by_k) {
          const Wide* row = reinterpret_cast<const Wide*>(b.at[k] + j);
          for (int r = 0; r < kRows; ++r)
            for (int c = 0; c < kColumns; ++c) sum[r][c] += from[r * by_row] * row[c];
        }
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < kColumns; ++c)
            reinterpret_cast<Wide*>(out.at[i + r] + j)[c] = sum[r][c];
      }
  }

  // A block of numbers times `by`, zero beyond it; rows lie `stride` apart.
  template <typename T>
  static void load(const T* from, int64_t stride, int rows, int columns, double by, Square& to) {
    for (int i = 0; i < rows; ++i, from += stride) {
      for (int j = 0; j < columns; ++j) to.at[i][j] = by * from[j];
      for (int j = columns; j < kBlock; ++j) to.at[i][j] = 0;
    }
    for (int i = rows; i < kBlock; ++i)
      for (double& v : to.at[i]) v = 0;
  }

  template <typename T>
  static int64_t sum_of_sizes(const T* __restrict v, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t value = v[i];
      sum += value < 0 ? -value : value;
    }
    return sum;
  }

  // u of one row, and where P learns its squares added up; the mean size that it has then.
  static double normalise(const WhitenedLeaf& leaf, int64_t row, int16_t* __restrict u,
                          int64_t* squares) {
    const int64_t n = leaf.inputs;
    const int32_t* __restrict z = leaf.votes + row * n;
    const double mean =
        __builtin_ceil(static_cast<double>(sum_of_sizes(z, n)) / static_cast<double>(n));
    const double scale = mean < leaf.floor ? leaf.floor : mean, by = 256 / scale;
    // Quotients z / (scale / 256) without a division each: one that is no half of a whole number is
    // 2^-32 from the next, and of one below 2^15 a product is 2^-37 off, so what is left of it in
    // steps of 2^-35 is rounded as the quotient is.
    if (scale <= kMostScale && scale == __builtin_floor(scale))
      for (int64_t k = 0; k < n; ++k)
        u[k] = static_cast<int16_t>(bounded(__builtin_rint((z[k] * by + kSteps) - kSteps), kTop));
    else
      for (int64_t k = 0; k < n; ++k)
        u[k] = static_cast<int16_t>(bounded(__builtin_rint(z[k] / (scale / 256)), kTop));
    int64_t sum = 0;
    if (leaf.after)
      for (int64_t k = 0; k < n; ++k) sum += int32_t{u[k]} * u[k];
    *squares += sum;
    return __builtin_floor(256 * mean / scale);
  }

  static void add(const int32_t* __restrict fine, int32_t* __restrict to,
                  const int16_t* __restrict y, int64_t n, double share) {
    for (int64_t k = 0; k < n; ++k)
      to[k] = static_cast<int32_t>(bounded(__builtin_rint(y[k] * share) + fine[k], kFine));
  }

  // Weights as the fine copy rounded; how many are others than before.
  static int64_t round(const int32_t* __restrict fine, const int8_t* __restrict before,
                       int8_t* __restrict to, int64_t n) {
    int32_t moved = 0;
    for (int64_t k = 0; k < n; ++k) {
      to[k] = static_cast<int8_t>((fine[k] + kHalf) >> 16);
      moved += to[k] != before[k];
    }
    return moved;
  }

  // Rows first .. last - 1, at most kWhitenedRows of them.
  static int64_t rows(const WhitenedLeaf& leaf, int64_t first, int64_t last, int64_t* squares,
                      void* scratch) {
    const int64_t inputs = leaf.inputs;
    Room& room = *static_cast<Room*>(scratch);
    int16_t* u = reinterpret_cast<int16_t*>(&room + 1);
    int16_t* y = leaf.turned ? leaf.turned + first * inputs : u + kWhitenedRows * inputs;
    double size[kWhitenedRows];
    for (int64_t i = first; i < last; ++i)
      size[i - first] = normalise(leaf, i, u + (i - first) * inputs, squares);
    if (!leaf.before) y = u;
    for (int64_t at = 0, b = 0; leaf.before && at < inputs; at += leaf.size, ++b) {
      const int count = static_cast<int>(inputs - at < leaf.size ? inputs - at : leaf.size);
      const int n = static_cast<int>(last - first);
      const int32_t* p = leaf.before + b * leaf.size * leaf.size;
      load(p, leaf.size, count, count, 1 / kOne, room.a);
      load(u + at, inputs, n, count, 1, room.b);
      multiply(room.b.at[0], kBlock, 1, room.a, count, n, room.c);
      for (int i = 0; i < n; ++i)
        for (int j = 0; j < count; ++j)
          y[i * inputs + at + j] =
              static_cast<int16_t>(bounded(__builtin_rint(room.c.at[i][j]), kTop));
    }
    int64_t moved = 0;
    for (int64_t i = first; i < last; ++i) {
      const int16_t* step = y + (i - first) * inputs;
      double share = leaf.factor;
      if (leaf.before) {
        const int64_t sum = sum_of_sizes(step, inputs);
        share = __builtin_floor(leaf.factor * static_cast<double>(inputs) * size[i - first] /
                                static_cast<double>(sum < 1 ? 1 : sum));
      }
      const int64_t at = i * inputs;
      add(leaf.fine + at, leaf.to.fine + at, step, inputs, share / kOne);
      if (leaf.feedback) add(leaf.feedback + at, leaf.to.feedback + at, step, inputs, share / kOne);
      moved += round(leaf.to.fine + at, leaf.weights + at, leaf.to.weights + at, inputs);
    }
    return moved;
  }

  // The next P of a block, from all rows of y. mean: of the diagonal of u'u, in Q8; of 0 nothing is
  // learnt.
  static void next(const WhitenedLeaf& leaf, int64_t block, double mean, void* scratch) {
    Room& room = *static_cast<Room*>(scratch);
    const int size = static_cast<int>(leaf.size);
    const int64_t first = block * size;
    const int count = static_cast<int>(leaf.inputs - first < size ? leaf.inputs - first : size);
    const int32_t* p = leaf.before + block * size * size;
    int32_t* to = leaf.after + block * size * size;
    if (mean < 1) {
      __builtin_memcpy(to, p, static_cast<size_t>(size * size) * sizeof *p);
      return;
    }
    Square &power = room.c, &part = room.d;
    for (auto& row : power.at)
      for (double& v : row) v = 0;
    for (int64_t row = 0; row < leaf.outputs; row += kBlock) {
      const int rest = static_cast<int>(leaf.outputs - row < kBlock ? leaf.outputs - row : kBlock);
      load(leaf.turned + row * leaf.inputs + first, leaf.inputs, rest, count, 1, room.a);
      multiply(room.a.at[0], 1, kBlock, room.a, rest, kBlock, part);
      for (int i = 0; i < kBlock; ++i)
        for (int j = 0; j < kBlock; ++j) power.at[i][j] += part.at[i][j];
    }
    Square &before = room.a, &m = room.b;
    load(p, size, size, size, 1, before);
    multiply(before.at[0], kBlock, 1, before, size, kBlock, part);
    const double by = mean / 256;
    for (int i = 0; i < kBlock; ++i)
      for (int j = 0; j < kBlock; ++j) {
        const double one = i == j ? kOne : 0;
        const double excess = __builtin_floor(power.at[i][j] / by) +
                              __builtin_floor(__builtin_rint(part.at[i][j] / kOne) / 10);
        m.at[i][j] = one - __builtin_floor((bounded(excess, kMostExcess) - one) / 128);
      }
    multiply(m.at[0], kBlock, 1, before, size, kBlock, part);
    for (auto& row : part.at)
      for (double& v : row) v = __builtin_rint(v / kOne);
    multiply(part.at[0], kBlock, 1, m, size, kBlock, power);
    for (auto& row : power.at)
      for (double& v : row) v = __builtin_rint(v / kOne);
    for (int i = 0; i < size; ++i)
      for (int j = 0; j < size; ++j)
        to[i * size + j] = static_cast<int32_t>(
            bounded(__builtin_floor((power.at[i][j] + power.at[j][i]) / 2), kMostP));
  }
};
