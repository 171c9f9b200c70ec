// The contract between the declared program and the kernels: plain data, shared by every
// instruction set's translation unit (its functions are static: none is emitted for all of them).
//
// Letters: P members, N = P/2 pairs, T tokens, D width, V vocabulary, K inputs, O outputs, r rank.
// A block is 16 pairs: lanes 0..15 are members 2i (noise +), lanes 16..31 members 2i+1 (noise -).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "eggroll_world.h"
#include "operations.h"

namespace eggroll {

constexpr int kPairs = 16;
constexpr int kLanes = 32;
constexpr int kTile = 8;                 // outputs of one dot-product tile
constexpr int kRegisters = 32;           // of one stage, at most
constexpr int kOps = 64;                 // of one stage, at most
constexpr int kSize = 32767;             // of a register, at most
constexpr int kStages = 1 << 16;         // of a program, at most
constexpr int kVocabulary = 1 << 16;     // at most
constexpr int kFeatures = 1 << 20;       // rows of a leaf, and indices of a row, at most
constexpr int kRank = 64;                // at most
constexpr int kSilent = 63;              // the shift of a leaf without noise
constexpr int kLists = 8;                // of an operation's features, at most
constexpr int kActive = 256;             // features of a list, at most: their sums fit int16
constexpr int kListRoom = kActive + 16;  // for those that are active, and what is stored beyond
// What a pair may earn at a token, at most: 15 times its discounted sum, in 1/256 bit, fits 32
// bits.
constexpr int kValue = 1 << 19;

// Whether an operation multiplies its input by a matrix.
static constexpr bool multiplies(OpKind kind) {
  return kind == OpKind::linear || kind == OpKind::score || kind == OpKind::sums;
}

// Whether it writes its register; the others give something to the caller.
static constexpr bool writes(OpKind kind) {
  return kind != OpKind::score && kind != OpKind::output && kind != OpKind::sums;
}

struct Op {
  OpKind kind;
  int out;
  int in[3];
  int leaf;
  int table;  // index of a 256-byte lookup table, by the register's byte as unsigned
  // Of features: a row's indices first .. first + lists * active - 1, and the right shift of sums.
  int lists, active, first, shift;
  int place;        // of output and sums: which of the program's outputs
  int chain;        // of linear: how many operations after it are done with each of its tiles
  bool multiplied;  // products alone read the result; of mix: products read it, too
  bool last;        // all ways from the result lead to outputs, by no other matrix
};

// A parameter [rows, cols] (cols 0: a vector of `rows`). `offset` is where it begins, from the
// packed weights on, where large ones need not lie: embeddings and features row by row, padded to 4
// columns; linear leaves as the instruction set packs them (Kernels::pack); vectors as they are.
struct Leaf {
  int rows;
  int cols;
  int64_t offset;
};

// Bytes of a leaf's noise in the table: B and A of a matrix, two for every value of a vector.
static inline int64_t slice_bytes(const Leaf& leaf, int rank) {
  return leaf.cols ? int64_t{rank} * (leaf.rows + leaf.cols) : int64_t{2} * leaf.rows;
}

struct Stage {
  const Op* ops;
  int op_count;
  const int* registers;  // sizes
  int register_count;
  int state;  // offset in the member's state, or -1
};

// What the caller has of a row: values [size], int8 or, if wide, int32.
struct OutputForm {
  int size;
  bool wide;
};

struct Plan {
  const Stage* stages;
  int stage_count;
  const Stage* parts;  // the same for evaluation, cut where x alone is read later: parts_of
  int part_count;
  const Leaf* leaves;
  int leaf_count;
  int width;
  int vocabulary;
  int state_size;
  const int8_t (*tables)[256];
  int score_bits;                    // a score's unit is 2^-score_bits of a bit: 4 or 8
  const int32_t* exp2;               // [256]: floor(2^(score_bits + i/16)), below 2^24
  const uint8_t (*exp2_bytes)[128];  // [3]: bytes of the upper half, from the lowest on
  const uint32_t* exp2_mantissa;     // [16]: floor(2^(15 + score_bits + f/16))
  const uint32_t* exact_mantissa;    // [16]: floor(2^(31 + f/16))
  const uint64_t* log2_breakpoints;  // [2^score_bits - 1]
  int inputs;                        // values of a row that `input` shows
  int indices;                       // of a row's features
  const OutputForm* outputs;
  int output_count;
  bool scored;  // whether there is a score
};

// Calls each(operation) of all that sum lists of features, in the order of these in a row.
template <typename Each>
static inline void each_features(const Plan& plan, Each each) {
  for (int i = 0; i < plan.stage_count; ++i)
    for (int j = 0; j < plan.stages[i].op_count; ++j)
      if (plan.stages[i].ops[j].kind == OpKind::features) each(plan.stages[i].ops[j]);
}

// Lists of a row.
static inline int lists_of(const Plan& plan) {
  int lists = 0;
  each_features(plan, [&](const Op& op) { lists += op.lists; });
  return lists;
}

// The credit of pairs: none here (the sign of whole sequences), token by token for the noise of
// weights, or for noise on the nodes that has another sign at every token.
enum class Credit : int { none, weights, nodes };

// The form of a leaf's credit: none, its inputs [K], the tokens of an embedding [T], one
// number for a vector, the head's own errors (see Job::readout), or the rows of features [T].
enum class CreditKind : int { none, inputs, tokens, scalar, readout, features };

// What a world answers, made into what the engine works with.
constexpr uint8_t kWorldIdle = EGGROLL_IDLE, kWorldBegins = EGGROLL_BEGINS;
constexpr int32_t kMostWorth = 1 << 30;  // of a row, either way

static inline uint8_t world_flag(int32_t answer) {
  return answer == EGGROLL_IDLE || answer == EGGROLL_BEGINS ? static_cast<uint8_t>(answer)
                                                            : uint8_t{EGGROLL_ROW};
}

// What a member's rows were worth, [rows].
static inline void world_value(const eggroll_world& world, const void* shared, void* mine, int rows,
                               int32_t* values) {
  __builtin_memset(values, 0, static_cast<size_t>(rows) * sizeof(int32_t));
  world.value(shared, mine, rows, values);
  for (int t = 0; t < rows; ++t) {
    int32_t v = values[t];
    values[t] = v < -kMostWorth ? -kMostWorth : v > kMostWorth ? kMostWorth : v;
  }
}

// One evaluation of P members; shapes as in Engine.evaluate.
struct Job {
  Plan plan;
  const int8_t* weights;
  const int8_t* noise;    // shared table
  const int32_t* starts;  // [leaves, N], or null: no noise
  int rank;
  int shift;
  const int32_t* tokens;   // [P / readers, T]
  const int32_t* targets;  // [P / readers, T]
  const int8_t* state_in;  // [P, state_size]
  int8_t* state_out;
  int16_t* scores;  // [P, T], or null
  int8_t* logits;   // [P, T, V], or null
  int64_t members;
  int tokens_per_member;
  Credit credit;
  const int32_t* shifts;          // [leaves]: right shift of a leaf's noise; kSilent: it has none
  const CreditKind* credit_kind;  // [leaves], or null: nothing is credited
  const int32_t* owners;          // [leaves]: the leaf whose noise it is credited with
  const int32_t* discounts;       // [leaves], in 1/16
  const int64_t* credit_at;       // [leaves]: where a leaf's credit begins in a pair's row
  const int32_t* signs;           // [leaves, N, ceil(T / 32)] words of T bits; 1: turned
  const uint32_t* draws;          // [N, T] random words for the readout
  int8_t* credits;                // [N, credit_size]
  int64_t credit_size;
  int credit_shift;
  int unit_shift;        // from score differences in 1/256 bit to the unit of credit
  int group;             // members that are compared with their mean, or 0: those of a pair
  int32_t* readout;      // [V, K] of this thread: += inputs of the head, by target and draw
  int block_tokens;      // tokens that a block runs through one stage before the next, at least 1
  uint64_t* totals;      // [P, T], or null: sums over the vocabulary of 2^(31 + (logit + 128) / 16)
  int8_t* hits;          // [P, T], with totals: the targets' logits
  const int8_t* inputs;  // [P, T, inputs]
  const int32_t* features;  // [P, T, indices] in -1 .. rows - 1
  const int32_t* values;    // [N, T], or null: in place of the pairs' score differences
  void* const* outputs;     // [outputs]: int8 or int32 [P, T, size]; or null
  // Where members meet a world: it shows the inputs and takes the first output, and there are
  // neither tokens nor targets, inputs nor values.
  const eggroll_world* world;
  const void* shared;    // what the world is given
  const uint64_t* keys;  // [P]
  double by;             // from differences of what rows were worth to values
  int32_t* worth;        // [P, T]
  bool* active;          // [P, T]: where something was at stake
  int readers = 1;       // members that read the same tokens, for the same targets
};

// The votes of one leaf: Z [rows, cols] int32 += over pairs first .. last - 1.
struct VoteJob {
  Leaf leaf;
  const int8_t* noise;
  const int32_t* starts;  // [N] of this leaf
  const int8_t* fitness;  // [N] in {-1, 0, 1}
  int rank;
  bool signs;  // vote with the signs of the noise
  // With token credit: rows of B (or factors of A) [N] `credit_stride` apart; A lies at `a_at`.
  const int8_t* credits;
  int64_t credit_stride;
  CreditKind kind;
  int64_t a_at;           // first byte of A in the slice; -1: a vector's own products
  const int32_t* tokens;  // [2 N / readers, T], of an embedding
  int tokens_per_member;
  // Of features: [2 N, T, indices], where the operation's lists begin, and whether their noise is
  // on the nodes.
  const int32_t* features;
  int indices, lists, active;
  bool nodes;
  int readers = 1;  // as of the job
};

// What makes an output's errors of targets; none: they are zeros.
enum class Loss : int { none, softmax, squared, sigmoid };

// What follows from a sigmoid's value alone: a table is faster than logarithm and division.
struct Sigmoids {
  uint32_t share[255];  // of v + 127: 127 times the probability, in 2^-16
  uint32_t lost[128];   // of |v|: log2(1 + 2^(-|v| / 16)), in 2^-16 bit
};

// Errors of outputs that are made of targets (learn_losses.h), as Job::outputs then has them.
struct Rating {
  const Loss* losses;       // [outputs]
  const int32_t* divisors;  // [outputs]: of values, which are then in 1/16
  const int32_t* targets;   // [P, T, targets_size] side by side: of softmax one, else one per value
  int targets_size;
  const Sigmoids* sigmoids;  // filled where a loss is one
  int8_t* errors;            // [P, T, errors_size]
  uint64_t* lost;            // [P, T, outputs]: in 2^-16 bit, or squares of 1/16
};

// Members without noise that carry the errors of their scores back (learn.h).
struct LearnJob {
  Job job;
  const uint32_t* words;      // [P, T]: random, to round credit by
  const int* scales;          // [leaves]: right shift of credit on its way to int8, 0..16
  const int8_t* const* back;  // [leaves]: the matrix that credit passes, see Kernels, or null
  int32_t* const* z;          // [leaves] of this thread: votes, in the leaf's shape
  int64_t* sizes;             // [leaves] of this thread: sum of |credit|
  const int8_t* errors;       // [P, T, errors_size] of the outputs side by side, or null
  int errors_size;
  const Rating* rating;  // where they are made here, or null
  int blocks;            // of a call: a group, whose lists are gone through at once
  const int32_t* index;  // or null: the job's features are spans of it, [P, T, all lists, 2]: where
                         // a list begins, and its size
};

// A leaf of n values before an update of Adam's and after it. Both have feedback, or neither
// (null). Weights are the rounding of fine; all matrices shrink by decay / 2^24.
struct AdamLeaf {
  struct Before {
    const int8_t* weights;
    const int32_t *fine, *mean, *size, *feedback;
  };
  struct After {
    int8_t* weights;
    int32_t *fine, *mean, *size, *feedback;
  };
  Before from;
  After to;
  const int32_t* votes;
  int64_t n, decay;
};

// A leaf of n values before an update of rule master and after it: votes times `factor` / 2^24 are
// added to the fine copy, which shrinks by decay / 2^24.
struct MasterLeaf {
  const int32_t* votes;
  const int8_t* weights;
  const int32_t* fine;
  int8_t* new_weights;
  int32_t* new_fine;
  int64_t n, factor, decay;
};

// A leaf of n values that move by one: up where votes are above `above`, down where below `below`,
// which is no more than above + 1.
struct SignLeaf {
  const int32_t* votes;
  const int8_t* from;
  int8_t* to;
  int64_t n;
  int32_t above, below;
};

// A leaf [outputs, inputs] before an update of rule whitened and after it. Both have feedback, or
// neither (null). before, after: its whitening matrices, `size` inputs wide, or null.
struct WhitenedLeaf {
  struct After {
    int8_t* weights;
    int32_t *fine, *feedback;
  };
  const int32_t* votes;
  const int8_t* weights;
  const int32_t *fine, *feedback;
  After to;
  int64_t outputs, inputs, size;
  double factor, floor;  // lr in 2^-8 of a fine copy's last bit, the least size taken for a signal
  const int32_t* before;
  int32_t* after;
  int16_t* turned;  // [outputs, inputs]: votes whitened, where `after` is learnt from them, or null
};

constexpr int kWhitenedInputs = 64, kWhitenedRows = 64;  // a whitening matrix's; rows at a time
constexpr size_t kWhiteningRoom = sizeof(double) * 4 * kWhitenedInputs * kWhitenedInputs;

// One instruction set's kernels. `peak` runs its dot product on registers, as a limit to measure
// against, and returns the multiply-adds done.
struct Kernels {
  const char* name;
  int64_t (*peak)(int64_t rounds);
  // A linear leaf's weights as this set multiplies them: how many bytes, and int8 [rows, cols] into
  // that many zeros.
  size_t (*weight_bytes)(int rows, int cols);
  void (*pack)(const int8_t* src, int rows, int cols, int8_t* to);
  size_t (*block_bytes)(const Job& job);
  void (*block)(const Job& job, int64_t block, void* scratch);
  size_t (*vote_bytes)(const VoteJob& job);
  void (*vote)(const VoteJob& job, int64_t first, int64_t last, int32_t* z, void* scratch);
  // A matrix that passes credit from its `rows` to its `cols`, as this set multiplies it: how many
  // bytes, and int8 [rows, cols] into that many zeros.
  size_t (*back_bytes)(int rows, int cols);
  void (*pack_back)(const int8_t* src, int rows, int cols, int8_t* to);
  size_t (*learn_bytes)(const LearnJob& job);
  bool (*learn)(const LearnJob& job, int64_t group, void* scratch);
  void (*sigmoids)(const Plan& plan, Sigmoids& to);  // what `learn` reads where a loss is one
  // Rules on values first .. last - 1 of a leaf, see rules.h; how many weights moved.
  // past: what is written goes past the caches, where the unit can.
  int64_t (*adam)(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor, bool past);
  int64_t (*master)(const MasterLeaf& leaf, int64_t first, int64_t last);
  int64_t (*sign)(const SignLeaf& leaf, int64_t first, int64_t last);
  // The same of at most kWhitenedRows rows; where `after` is wanted the squares of what the leaf's
  // votes are whitened from are added up, and then `after` is that of a block of inputs.
  int64_t (*whiten)(const WhitenedLeaf& leaf, int64_t first, int64_t last, int64_t* squares,
                    void* scratch);
  void (*next_whitening)(const WhitenedLeaf& leaf, int64_t block, double mean, void* scratch);
  // Numbers below `room`, at most 2^32, from position `first` of a stream on; see
  // `draws` of engine.h.
  void (*draw)(uint64_t stream, uint64_t first, int64_t count, uint64_t room, int32_t* out);
};

}  // namespace eggroll
