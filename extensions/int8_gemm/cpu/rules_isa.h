// Update rules on a part of a leaf, in portable C++; docs/estimators.md has the arithmetic.
// Included inside each unit's namespace.

static int64_t move_by_sign(const SignLeaf& leaf, int64_t first, int64_t last) {
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

  static int64_t part(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor) {
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
