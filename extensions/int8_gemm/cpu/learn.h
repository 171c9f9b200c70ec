// Credit carried back: a block of 32 members without noise runs all T tokens, remembers what every
// operation gave, and then hands the errors of its scores back, operation by operation. Included
// inside each unit's namespace, after block.h. docs/estimators.md has the arithmetic.
//
// Credit lies as activations do, [K/4][32][4], in int32; it is zero beyond K and in lanes without
// a member.

constexpr int32_t kBound = (1 << 22) - 1;    // of credit
constexpr int32_t kSumBound = 1 << 26;       // of what a matrix sends back
constexpr uint32_t kNextLeaf = 0x9E3779B9u;  // from a leaf's random words to the next one's
constexpr int kErrorScale = 8;               // fraction bits of credit, in units of the error
constexpr int kRow = 4 * kLanes;             // values in a row of words
constexpr int kVoteTokens = 32;              // tokens whose votes are counted at a time

static inline int32_t bounded(int32_t v) { return clamp(v, -kBound, kBound); }

// 1 / (16 floor(sqrt K)) as a / 2^n.
struct Reduced {
  int a, n;
};

static inline Reduced reduced(int inputs) {
  int d = 16 * isqrt(inputs), n = 35 - __builtin_clz(static_cast<unsigned>(d));
  return {static_cast<int>(((int64_t{2} << n) / d + 1) / 2), n};
}

#include "learn_tape.h"
//
#include "learn_credit.h"

struct Learner : LearnCredit {
  using LearnCredit::LearnCredit;

  void learn_all() {
    step = row_words(job.plan.width);
    lay_out();
    size_t mark = arena.used, peak = mark;
    int stages = job.plan.stage_count;
    for (int i = 0; i < 2 * stages; ++i) {  // there and back
      int at = i < stages ? i : 2 * stages - 1 - i;
      stage = &job.plan.stages[at];
      arena.used = mark;
      open_learning();
      peak = arena.used > peak ? arena.used : peak;
      if (arena.base) i < stages ? record(at) : carry_back(at);
    }
    arena.used = peak;
  }

  void carry_back(int at) {
    form = form_of(*stage);
    for (int r = 0; r < stage->register_count; ++r) has[r] = false;
    bool handing = false;
    for (int t = T() - 1; t >= 0; --t) {
      row = tapes[at] + form.size * static_cast<size_t>(t);
      credit[0] = handed + 4 * step * static_cast<size_t>(t);
      has[0] = any_handed;
      draw_places(t);
      for (int j = stage->op_count - 1; j >= 0; --j) pass(j, t);
      if (!has[0]) __builtin_memset(credit[0], 0, 4 * step * sizeof(int32_t));
      handing |= has[0];
      for (int r = 2; r < stage->register_count; ++r) has[r] = false;
      has[1] = has[1] && stage->state >= 0;
      if (has[1]) forget_documents(t);
    }
    any_handed = handing;
    for (int j = 0; j < stage->op_count; ++j)
      if (voted[j]) count_votes(at, j);
  }

  // ---- votes ---------------------------------------------------------------------------------

  // Z [O, K] += sum over tokens and lanes of credit x input, on the tiles of the forward pass: the
  // credit of eight outputs in the place of weights, 32 inputs in that of members.
  void count_votes(int at, int j) {
    const Op& op = stage->ops[j];
    int rows = rows_of(op), cols = cols_of(op), words = words_of(rows);
    int32_t* z = learn.z[op.leaf];
    for (int first = 0; first < T(); first += kVoteTokens) {
      int tokens = T() - first < kVoteTokens ? T() - first : kVoteTokens, n = tokens * (kLanes / 4);
      const uint32_t* from = credits[j] + static_cast<size_t>(words) * kLanes * first;
      for (int t = 0; t < tokens; ++t)
        for (int w = 0; w < tiles_of(rows) * 2; ++w) {
          uint32_t* tile_at = reinterpret_cast<uint32_t*>(
              tiles_a + static_cast<size_t>(w / 2) * tile_bytes(static_cast<size_t>(n)) +
              kTile * 4);
          turn_words(w < words ? from + (static_cast<size_t>(t) * words + w) * kLanes : nullptr,
                     tile_at + t * (kLanes / 4) * kTile + w % 2 * 4, kTile);
        }
      for (int i = 0; i < tiles_of(rows); ++i)
        Isa::bias(tiles_a + static_cast<size_t>(i) * tile_bytes(static_cast<size_t>(n)), n);
      for (int k = 0; k < cols; k += kLanes) {
        for (int t = 0; t < tokens; ++t) {
          row = tapes[at] + form.size * static_cast<size_t>(first + t);
          const uint32_t* inputs = reinterpret_cast<const uint32_t*>(read(j, 0));
          for (int w = 0; w < kLanes / 4; ++w)
            turn_words(k / 4 + w < words_of(cols) ? inputs + (k / 4 + w) * kLanes : nullptr,
                       columns + t * (kLanes / 4) * kLanes + 4 * w, kLanes);
        }
        Isa::prepare(columns, n, panel);
        count_panel(z, rows, cols, k, n);
      }
    }
  }

  void count_panel(int32_t* z, int rows, int cols, int k, int n) {
    int count = cols - k < kLanes ? cols - k : kLanes;
    for (int i = 0; i < tiles_of(rows); ++i) {
      alignas(64) int32_t acc[kTile][kLanes];
      Isa::dot(tiles_a + static_cast<size_t>(i) * tile_bytes(static_cast<size_t>(n)), panel, n,
               acc);
      for (int o = 0; o < kTile && i * kTile + o < rows; ++o) {
        int32_t* __restrict to = z + static_cast<int64_t>(i * kTile + o) * cols + k;
        for (int m = 0; m < count; ++m) to[m] = wrapping_sum(to[m], acc[o][m]);
      }
    }
  }

  // Words of four values [32 lanes] -> words of four lanes: four for every group of lanes, `stride`
  // apart from group to group; null is zeros.
  static void turn_words(const uint32_t* from, uint32_t* to, int stride) {
    for (int g = 0; g < kLanes / 4; ++g, to += stride) {
      uint32_t a = 0, b = 0, c = 0, d = 0;
      if (from) a = from[4 * g], b = from[4 * g + 1], c = from[4 * g + 2], d = from[4 * g + 3];
      // Two rounds of exchanges: bytes of neighbours, then halves.
      uint32_t ab = (a & 0x00FF00FFu) | (b & 0x00FF00FFu) << 8;
      uint32_t ba = (a >> 8 & 0x00FF00FFu) | (b & 0xFF00FF00u);
      uint32_t cd = (c & 0x00FF00FFu) | (d & 0x00FF00FFu) << 8;
      uint32_t dc = (c >> 8 & 0x00FF00FFu) | (d & 0xFF00FF00u);
      to[0] = (ab & 0xFFFFu) | cd << 16;
      to[1] = (ba & 0xFFFFu) | dc << 16;
      to[2] = ab >> 16 | (cd & 0xFFFF0000u);
      to[3] = ba >> 16 | (dc & 0xFFFF0000u);
    }
  }
};

static size_t learn_bytes(const LearnJob& job) {
  Learner sizing(job, 0, nullptr);
  sizing.learn_all();
  return sizing.arena.used;
}

static void learn(const LearnJob& job, int64_t index, void* scratch) {
  Learner(job, index, scratch).learn_all();
}
