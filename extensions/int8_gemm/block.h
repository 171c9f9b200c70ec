// The block interpreter: 32 members run all T tokens through the whole program.
//
// Included by one translation unit per instruction set, inside that unit's own namespace, after it
// has defined `struct Isa` (see portable_isa.h). A register of K bytes is kept as words
// [K/4][32 lanes] of four neighbouring bytes, so elementwise work is layout-free, a tile of eight
// outputs makes two words per lane, and a word is what a dot-product instruction eats.
// Sums wrap: they are formed in uint32_t. All loops over lanes are meant for the vectoriser.

#include "arena.h"
// Uses it.
#include "credit.h"

// What an operation's leaf looks like to one block.
struct LeafNoise {
  uint32_t* raw;   // B as words [r][K/4][16 pairs]
  Isa::Noise* b;   // the same, prepared for lane_dot
  int8_t* a;       // [r][O][16 pairs]
  int8_t* vector;  // [n/4][32][4]: the perturbed vector w', or the plain one
  int32_t* node;   // [O][16 pairs]: noise on the outputs
  uint32_t* row;   // noise on an embedding's outputs, words [D/4][32]: n, and -n in the upper lanes
};

struct Block {
  const Job& job;
  Arena arena;
  int64_t first_member;
  uint32_t* x;  // [T][D/4][32]: what passes between stages
  uint32_t* registers[kRegisters];
  Isa::Prepared* prepared[kRegisters];
  bool ready[kRegisters];
  const Stage* stage;
  LeafNoise noise[kOps];  // of the stage's operations
  Tape tape;
  uint32_t* turned;          // a vector or a row of noise as one token has it
  uint8_t (*marks)[kPairs];  // [T]: 1 where a member's document begins
  alignas(64) uint32_t minus[kPairs];
  int32_t (*xb)[kLanes];  // [r]: signed x.B
  alignas(64) uint32_t tile[kTile / 4][kLanes];

  Block(const Job& j, int64_t block, void* scratch)
      : job(j), arena{static_cast<char*>(scratch)}, first_member(block * kLanes), tape(j, arena) {}

  int64_t member(int lane) const { return first_member + 2 * (lane % kPairs) + lane / kPairs; }
  int64_t clamped(int lane) const {
    int64_t m = member(lane);
    return m < job.members ? m : job.members - 1;
  }
  int64_t pair(int p) const {
    int64_t i = first_member / 2 + p;
    return i < job.members / 2 ? i : job.members / 2 - 1;
  }
  const int8_t* slice(int leaf, int p) const {
    return job.noise + job.starts[leaf * (job.members / 2) + pair(p)];
  }
  bool nodes() const { return job.credit == Credit::nodes; }
  int rank() const { return job.starts && !nodes() ? job.rank : 0; }
  bool silent(const Op& op) const { return nodes() && job.shifts[op.leaf] == kSilent; }
  LeafNoise& of(const Op& op) { return noise[&op - stage->ops]; }

  // ---- noise and parameters of a stage -------------------------------------------------------

  // Four neighbouring inputs of B to a word, zero beyond K; prepared for products unless `embed`.
  void load_b(const Op& op, int k) {
    int words = words_of(k), r = job.rank;
    size_t one = Isa::noise_size(words), raw_one = static_cast<size_t>(words) * kPairs;
    uint32_t* raw = of(op).raw = arena.take<uint32_t>(raw_one * r);
    if (op.kind != OpKind::embed) of(op).b = arena.take<Isa::Noise>(one * r);
    if (!arena.base) return;
    for (int j = 0; j < r; ++j, raw += raw_one) {
      const int8_t* src[kPairs];
      for (int p = 0; p < kPairs; ++p) src[p] = slice(op.leaf, p) + j;
      int whole = r == 1 ? k / 4 : 0;
      Isa::transpose_words(src, whole, raw, kPairs);
      for (int w = whole; w < words; ++w)
        for (int p = 0; p < kPairs; ++p) raw[w * kPairs + p] = gather_word(src[p], 4 * w, k, r);
      if (op.kind != OpKind::embed) Isa::prepare_noise(raw, words, of(op).b + one * j);
    }
  }

  static uint32_t gather_word(const int8_t* src, int first, int n, int stride) {
    uint32_t word = 0;
    for (int i = 0; i < 4 && first + i < n; ++i)
      word |= static_cast<uint32_t>(static_cast<uint8_t>(src[(first + i) * stride])) << 8 * i;
    return word;
  }

  void load_a(const Op& op, int k, int outputs) {
    int r = job.rank, padded = tiles_of(outputs) * kTile;
    int8_t* dst = of(op).a = arena.take<int8_t>(static_cast<size_t>(r) * padded * kPairs);
    if (!arena.base) return;
    for (int j = 0; j < r; ++j, dst += static_cast<size_t>(padded) * kPairs) {
      const int8_t* src[kPairs];
      for (int p = 0; p < kPairs; ++p) src[p] = slice(op.leaf, p) + r * k + j;
      int o = 0;
      for (; r == 1 && o + 16 <= outputs; o += 16) {
        Isa::transpose(src, dst + o * kPairs);
        for (int p = 0; p < kPairs; ++p) src[p] += 16;
      }
      for (int i = 0; o < outputs; ++o, i += r)
        for (int p = 0; p < kPairs; ++p) dst[o * kPairs + p] = src[p][i];
      for (int i = outputs * kPairs; i < padded * kPairs; ++i) dst[i] = 0;
    }
  }

  void load_vector(const Op& op) {
    int n = job.plan.leaves[op.leaf].rows;
    const int8_t* w = job.weights + job.plan.leaves[op.leaf].offset;
    int words = words_of(n);
    of(op).vector = arena.take<int8_t>(static_cast<size_t>(words) * 4 * kLanes);
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
        perturbed(w, slice(op.leaf, p), n, shift, plus, minus);
      } else {
        __builtin_memcpy(plus, w, static_cast<size_t>(n));
        __builtin_memcpy(minus, w, static_cast<size_t>(n));
      }
    }
    uint32_t* dst = reinterpret_cast<uint32_t*>(of(op).vector);
    Isa::transpose_words(src, words, dst, kLanes);
    Isa::transpose_words(src + kPairs, words, dst + kPairs, kLanes);
  }

  // The vector as members 2i and 2i + 1 see it. Products of two bytes fit int16, and a shift by
  // more than 15 gives what a shift by 15 does.
  static void perturbed(const int8_t* __restrict w, const int8_t* __restrict two, int n, int shift,
                        int8_t* __restrict plus, int8_t* __restrict minus) {
    int by = shift < 15 ? shift : 15;
    for (int i = 0; i < n; ++i) {
      int16_t product = static_cast<int16_t>(two[2 * i] * two[2 * i + 1]);
      int16_t negative = static_cast<int16_t>(-product);
      plus[i] = static_cast<int8_t>(clip(w[i] + (product >> by)));
      minus[i] = static_cast<int8_t>(clip(w[i] + (negative >> by)));
    }
  }

  void load_leaf(const Op& op) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    if (leaf.cols == 0) return load_vector(op);
    if (!job.starts || silent(op)) return;
    if (nodes()) return op.kind == OpKind::embed ? load_row(op) : load_node(op);
    load_b(op, leaf.cols);
    if (op.kind != OpKind::embed) load_a(op, leaf.cols, leaf.rows);
  }

  // A on the outputs, in the scale of the sums: 2^-shift of the last bit for A = 1.
  void load_node(const Op& op) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int padded = tiles_of(leaf.rows) * kTile, root = isqrt(leaf.cols), by = job.shifts[op.leaf];
    int32_t* dst = of(op).node = arena.take<int32_t>(static_cast<size_t>(padded) * kPairs);
    if (!arena.base) return;
    for (int p = 0; p < kPairs; ++p) {
      const int8_t* a = slice(op.leaf, p) + leaf.cols;
      for (int o = 0; o < leaf.rows; ++o)
        dst[o * kPairs + p] = (16 * root * a[o] + (by ? 1 << (by - 1) : 0)) >> by;
      for (int o = leaf.rows; o < padded; ++o) dst[o * kPairs + p] = 0;
    }
  }

  void load_row(const Op& op) {
    int d = job.plan.leaves[op.leaf].cols, words = words_of(d), by = job.shifts[op.leaf];
    uint32_t* dst = of(op).row = arena.take<uint32_t>(static_cast<size_t>(words) * kLanes);
    if (!arena.base) return;
    int8_t* bytes = reinterpret_cast<int8_t*>(dst);
    for (int p = 0; p < kPairs; ++p) {
      const int8_t* b = slice(op.leaf, p);
      for (int k = 0; k < 4 * words; ++k) {
        int n = k < d ? (b[k] + (by ? 1 << (by - 1) : 0)) >> by : 0;
        bytes[(k / 4 * kLanes + p) * 4 + k % 4] = static_cast<int8_t>(n);
        bytes[(k / 4 * kLanes + p + kPairs) * 4 + k % 4] = static_cast<int8_t>(clip(-n));
      }
    }
  }

  // The two halves of every word row, exchanged for the pairs whose noise is turned at token t.
  const uint32_t* turn(const Op& op, const uint32_t* from, int words, int t) {
    tape.turned(op.leaf, first_member / 2, t, minus);
    for (int w = 0; w < words; ++w, from += kLanes)
      for (int p = 0; p < kPairs; ++p) {
        uint32_t swap = (from[p] ^ from[p + kPairs]) & minus[p];
        turned[w * kLanes + p] = from[p] ^ swap;
        turned[w * kLanes + p + kPairs] = from[p + kPairs] ^ swap;
      }
    return turned;
  }

  const int8_t* vector(const Op& op, int n, int t) {
    if (!nodes() || silent(op)) return of(op).vector;
    const uint32_t* plain = reinterpret_cast<const uint32_t*>(of(op).vector);
    return reinterpret_cast<const int8_t*>(turn(op, plain, words_of(n), t));
  }

  void open_stage() {
    for (int i = 0; i < stage->register_count; ++i) {
      int words = tiles_of(stage->registers[i]) * (kTile / 4);
      if (i > 0) registers[i] = arena.take<uint32_t>(static_cast<size_t>(words) * kLanes);
      prepared[i] = arena.take<Isa::Prepared>(Isa::prepared_size(words));
    }
    for (int i = 0; i < stage->op_count; ++i)
      if (stage->ops[i].leaf >= 0) load_leaf(stage->ops[i]);
  }

  // ---- recurrent state -----------------------------------------------------------------------

  void load_state(const int8_t* from) {
    uint32_t* s = registers[1];
    int words = words_of(job.plan.width);
    for (int i = 0; i < words * kLanes; ++i) s[i] = 0;
    if (stage->state < 0) return;
    int8_t* bytes = reinterpret_cast<int8_t*>(s);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int8_t* src = from + clamped(lane) * job.plan.state_size + stage->state;
      for (int k = 0; k < job.plan.width; ++k) bytes[(k / 4 * kLanes + lane) * 4 + k % 4] = src[k];
    }
  }

  void store_state() {
    if (stage->state < 0) return;
    const int8_t* bytes = reinterpret_cast<const int8_t*>(registers[1]);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (member(lane) >= job.members) continue;
      int8_t* dst = job.state_out + member(lane) * job.plan.state_size + stage->state;
      for (int k = 0; k < job.plan.width; ++k) dst[k] = bytes[(k / 4 * kLanes + lane) * 4 + k % 4];
    }
  }

  int32_t token(const int32_t* of, int lane, int t) const {
    return of[clamped(lane) * job.tokens_per_member + t];
  }

  // The document mark 0 zeroes a member's state.
  void restart(int t) {
    uint32_t keep[kLanes], all = ~0u;
    for (int m = 0; m < kLanes; ++m) all &= keep[m] = token(job.tokens, m, t) ? ~0u : 0u;
    if (all) return;
    for (int w = 0; w < words_of(job.plan.width); ++w)
      for (int m = 0; m < kLanes; ++m) registers[1][w * kLanes + m] &= keep[m];
  }

  // ---- operations ----------------------------------------------------------------------------

  int8_t* bytes(int reg) { return reinterpret_cast<int8_t*>(registers[reg]); }

  Isa::Prepared* prepare(int reg, int n) {
    if (!ready[reg]) Isa::prepare(registers[reg], words_of(n), prepared[reg]);
    ready[reg] = true;
    return prepared[reg];
  }

  void embed(const Op& op, int t) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int words = words_of(leaf.cols), r = rank();
    const int8_t* row[kLanes];
    for (int m = 0; m < kLanes; ++m)
      row[m] =
          job.weights + leaf.offset + static_cast<int64_t>(token(job.tokens, m, t)) * words * 4;
    Isa::transpose_words(row, words, registers[op.out], kLanes);
    Isa::transpose_words(row + kPairs, words, registers[op.out] + kPairs, kLanes);
    if (r) embed_noise(op, t, words);
    if (!nodes() || silent(op)) return;
    const int8_t* row_noise = reinterpret_cast<const int8_t*>(turn(op, of(op).row, words, t));
    Isa::add(bytes(op.out), row_noise, words * 4 * kLanes, bytes(op.out));
  }

  void embed_noise(const Op& op, int t, int words) {
    int r = job.rank, d = job.plan.leaves[op.leaf].cols;
    for (int m = 0; m < kLanes; ++m) {
      const int8_t* a = slice(op.leaf, m % kPairs) + r * d;
      a += static_cast<int64_t>(token(job.tokens, m, t)) * r;
      for (int j = 0; j < r; ++j) xb[j][m] = m < kPairs ? a[j] : -a[j];
    }
    Isa::embed_noise(xb, of(op).raw, r, words, job.shift, registers[op.out]);
  }

  // x.B per lane and rank, negated on the minus lanes (where the sign of A would be).
  void low_rank(const Op& op, const Isa::Prepared* x, int words, int t) {
    size_t one = Isa::noise_size(words);
    for (int j = 0; j < job.rank; ++j) {
      Isa::lane_dot(x, of(op).b + one * j, words, xb[j]);
      if (job.credit == Credit::weights && job.credit_kind[op.leaf] == CreditKind::inputs)
        __builtin_memcpy(tape.seen[op.leaf] + t * kPairs, xb[j], kPairs * sizeof(int32_t));
      for (int m = kPairs; m < kLanes; ++m)
        xb[j][m] = static_cast<int32_t>(0u - static_cast<uint32_t>(xb[j][m]));
    }
  }

  // One linear leaf, tile by tile into `place(index)`, words [2][32]; `done(index)` follows each.
  template <typename Place, typename Done>
  void product(const Op& op, int t, Place place, Done done) {
    const Leaf& leaf = job.plan.leaves[op.leaf];
    int words = words_of(leaf.cols), r = rank(), tiles = tiles_of(leaf.rows);
    const Isa::Prepared* x = prepare(op.in[0], leaf.cols);
    Scale by = scale(leaf.cols);
    LowRank noise{xb,      of(op).a, static_cast<size_t>(tiles) * kTile * kPairs, r, job.shift,
                  nullptr, minus};
    const int8_t* w = job.weights + leaf.offset;
    if (r) low_rank(op, x, words, t);
    if (nodes() && !silent(op)) {
      noise.node = of(op).node;
      tape.turned(op.leaf, first_member / 2, t, minus);
    }
    if (job.credit != Credit::none && job.credit_kind[op.leaf] == CreditKind::inputs)
      tape.keep(op.leaf, t, registers[op.in[0]], words);
    for (int i = 0; i < tiles; ++i) {
      Isa::tile(w, x, words, noise, by, place(i));
      w += kTile * sizeof(int32_t) + static_cast<size_t>(words) * kTile * 4;
      noise.a += kTile * kPairs;
      if (noise.node) noise.node += kTile * kPairs;
      done(i);
    }
  }

  void linear(const Op& op, int t) {
    using Words = uint32_t (*)[kLanes];
    Words out = reinterpret_cast<Words>(registers[op.out]);
    product(op, t, [out](int i) { return out + i * (kTile / 4); }, [](int) {});
  }

  // Head and log-likelihood in one pass: the logits of a tile live only until they are summed.
  void score(const Op& op, int t) {
    alignas(64) uint64_t total[kLanes] = {};
    alignas(64) uint32_t sum[kLanes] = {};
    alignas(64) int32_t target[kLanes], hit[kLanes] = {};
    const Plan& plan = job.plan;
    for (int m = 0; m < kLanes; ++m) target[m] = token(job.targets, m, t);
    int rows = plan.leaves[op.leaf].rows, last = tiles_of(rows) - 1;
    auto& words = tile;
    Draw draw;
    if (job.readout)
      for (int p = 0; p < kPairs; ++p)
        draw.begin(p, job.draws[pair(p) * job.tokens_per_member + t]);
    product(
        op, t, [&](int) { return words; },
        [&](int i) {
          int count = i < last ? kTile : rows - last * kTile;
          if (job.readout)
            draw.offer(words, i, count, plan, sum);
          else
            Isa::exp2_sum(words, count, plan, sum);
          for (int m = 0; m < kLanes; ++m) {
            uint32_t o = static_cast<uint32_t>(target[m] - i * kTile);
            uint32_t word = o & 4 ? words[1][m] : words[0][m];
            int32_t u = static_cast<int32_t>(((word >> 8 * (o & 3)) & 255) ^ 128);
            hit[m] = o < kTile ? u : hit[m];
          }
          // 4096 terms below 2^20 fit 32 bits.
          if (i % 512 == 511 || i == last)
            for (int m = 0; m < kLanes; ++m) total[m] += sum[m], sum[m] = 0;
          if (job.logits) keep_logits(words, t, i * kTile, count);
        });
    uint32_t clipped = 0;  // pairs whose target has the highest logit there is
    for (int p = 0; p < kPairs; ++p) clipped |= static_cast<uint32_t>(hit[p] == 255) << p;
    for (int m = 0; m < kLanes; ++m) hit[m] -= log2_q4(total[m]);
    for (int m = 0; m < kLanes; ++m)
      if (member(m) < job.members)
        job.scores[member(m) * job.tokens_per_member + t] = static_cast<int16_t>(hit[m]);
    if (job.credit == Credit::none) return;
    for (int p = 0; p < kPairs; ++p) tape.gain[t][p] = hit[p] - hit[p + kPairs];
    if (!job.readout) return;
    for (int p = 0; p < kPairs && member(p) < job.members; ++p)
      read(op, p, target[p], clipped >> p & 1, draw.token(p, plan));
  }

  // The target's row of the readout gains what the head saw, that of the token drawn loses it.
  // At the limit of the clip the target's logit follows its row no more.
  void read(const Op& op, int p, int target, bool clipped, int drawn) {
    if (drawn == target) return;
    int cols = job.plan.leaves[op.leaf].cols, words = words_of(cols);
    uint32_t* seen = tape.row;
    for (int w = 0; w < words; ++w) seen[w] = registers[op.in[0]][w * kLanes + p];
    const int8_t* __restrict x = reinterpret_cast<const int8_t*>(seen);
    int32_t* __restrict gains = job.readout + static_cast<int64_t>(target) * cols;
    int32_t* __restrict loses = job.readout + static_cast<int64_t>(drawn) * cols;
    for (int k = 0; !clipped && k < cols; ++k) gains[k] += x[k];
    for (int k = 0; k < cols; ++k) loses[k] -= x[k];
  }

  int32_t log2_q4(uint64_t n) const {
    int zeros = __builtin_clzll(n), fraction = 0;
    for (int f = 0; f < 15; ++f) fraction += (n << zeros) >= job.plan.log2_breakpoints[f];
    return 16 * (63 - zeros) + fraction - 64;
  }

  void keep_logits(uint32_t (*words)[kLanes], int t, int first, int count) {
    for (int m = 0; m < kLanes; ++m) {
      if (member(m) >= job.members) continue;
      int8_t* dst = job.logits + (member(m) * job.tokens_per_member + t) * job.plan.vocabulary;
      for (int o = 0; o < count; ++o)
        dst[first + o] = static_cast<int8_t>(byte_at(words[o / 4][m], o % 4));
    }
  }

  void norm(const Op& op, int n, int t) {
    Isa::norm(registers[op.in[0]], vector(op, n, t), n, bytes(op.out));
  }

  void elementwise(const Op& op, int n, int t) {
    int8_t* y = bytes(op.out);  // may be an input
    const int8_t* a = bytes(op.in[0]);
    const int8_t* b = op.in[1] >= 0 ? bytes(op.in[1]) : nullptr;
    const int8_t* c = op.in[2] >= 0 ? bytes(op.in[2]) : nullptr;
    int count = words_of(n) * 4 * kLanes;
    if (op.kind == OpKind::add) Isa::add(a, b, count, y);
    if (op.kind == OpKind::add_bias) Isa::add_bias(a, b, vector(op, n, t), count, y);
    if (op.kind == OpKind::forget) Isa::forget(a, b, count, y);
    if (op.kind == OpKind::mix) Isa::mix(a, b, c, count, y);
    if (op.kind == OpKind::lookup) {
      const int8_t* table = job.plan.tables[op.table];
      for (int i = 0; i < count; ++i) y[i] = table[static_cast<uint8_t>(a[i])];
    }
  }

  void run(const Op& op, int t) {
    int size = stage->registers[op.out];
    switch (op.kind) {
      case OpKind::embed:
        embed(op, t);
        break;
      case OpKind::linear:
        linear(op, t);
        break;
      case OpKind::norm:
        norm(op, size, t);
        break;
      case OpKind::score:
        return score(op, t);
      default:
        elementwise(op, size, t);
    }
    ready[op.out] = false;
  }

  // Slab by slab of tokens, in it stage by stage, and there token by token: a stage's weights and
  // noise and the slab's activations stay in cache.
  // Without memory (base null) nothing is computed: the arena only learns how much it needs.
  void run_all() {
    int slab = clamp(job.slab, 1, job.tokens_per_member);
    if (job.credit != Credit::none) open_credit();
    size_t step = static_cast<size_t>(tiles_of(job.plan.width)) * (kTile / 4) * kLanes;
    x = arena.take<uint32_t>(step * slab);
    xb = arena.take<int32_t[kLanes]>(job.rank);
    size_t mark = arena.used, peak = mark;
    for (int first = 0; first < job.tokens_per_member; first += slab) {
      for (int i = 0; i < job.plan.stage_count; ++i) {
        stage = &job.plan.stages[i];
        arena.used = mark;
        open_stage();
        peak = arena.used > peak ? arena.used : peak;
        if (arena.base) run_stage(first, slab, step);
      }
    }
    arena.used = peak;
    if (job.credit != Credit::none && arena.base) close_credit();
  }

  // ---- credit --------------------------------------------------------------------------------

  void open_credit() {
    int widest = job.plan.width;
    for (int i = 0; i < job.plan.leaf_count; ++i)
      if (job.plan.leaves[i].cols == 0 && job.plan.leaves[i].rows > widest)
        widest = job.plan.leaves[i].rows;
    turned = arena.take<uint32_t>(static_cast<size_t>(words_of(widest)) * kLanes);
    marks = arena.take<uint8_t[kPairs]>(static_cast<size_t>(job.tokens_per_member));
  }

  void close_credit() {
    for (int t = 0; t < job.tokens_per_member; ++t)
      for (int p = 0; p < kPairs; ++p) marks[t][p] = token(job.tokens, p, t) == 0;
    for (int i = 0; i < job.plan.leaf_count; ++i) {
      int8_t* rows[kPairs];
      for (int p = 0; p < kPairs; ++p)
        rows[p] = member(p) < job.members
                      ? job.credits + member(p) / 2 * job.credit_size + job.credit_at[i]
                      : nullptr;
      if (job.credit_kind[i] > CreditKind::none && job.credit_kind[i] < CreditKind::readout)
        credit_leaf(i, rows);
    }
  }

  void credit_leaf(int i, int8_t* const* rows) {
    const Leaf& leaf = job.plan.leaves[i];
    CreditKind kind = job.credit_kind[i];
    if (nodes())
      tape.discounted(i, marks, [&](int t, int p, int32_t v) {
        if (p == 0) tape.turned(job.owners[i], first_member / 2, t, minus);
        return minus[p] ? -v : v;
      });
    else if (kind == CreditKind::inputs)
      tape.discounted(i, marks, [&](int t, int p, int32_t v) {
        int shift = 5 + 31 - __builtin_clz(static_cast<unsigned>(isqrt(leaf.cols)));
        int64_t product = (int64_t{v} * tape.seen[i][t * kPairs + p]) >> shift;
        return static_cast<int32_t>(product < -127 ? -127 : product > 127 ? 127 : product);
      });
    else if (kind == CreditKind::tokens)
      tape.discounted(i, marks, [&](int t, int p, int32_t v) {
        return (v * slice(i, p)[job.rank * leaf.cols + token(job.tokens, p, t)]) >> 4;
      });
    else
      tape.discounted(i, marks, [](int, int, int32_t v) { return v; });
    if (kind == CreditKind::inputs) return tape.inputs(i, rows);
    for (int p = 0; p < kPairs; ++p) {
      int32_t sum = 0;
      for (int t = 0; rows[p] && t < job.tokens_per_member; ++t) {
        sum += tape.credit[t][p];
        if (kind == CreditKind::tokens) rows[p][t] = tape.credit[t][p];
      }
      if (kind == CreditKind::scalar && rows[p]) *rows[p] = Tape::rounded(sum, job.credit_shift);
    }
  }

  void run_stage(int first, int slab, size_t step) {
    load_state(first ? job.state_out : job.state_in);
    for (int t = first; t < first + slab && t < job.tokens_per_member; ++t) {
      registers[0] = x + step * (t - first);
      for (int j = 0; j < stage->register_count; ++j) ready[j] = false;
      restart(t);
      for (int j = 0; j < stage->op_count; ++j) run(stage->ops[j], t);
    }
    store_state();
  }
};

static size_t block_bytes(const Job& job) {
  Block sizing(job, 0, nullptr);
  sizing.run_all();
  return sizing.arena.used;
}

static void block(const Job& job, int64_t index, void* scratch) {
  Block(job, index, scratch).run_all();
}
