// Checks a declared program and packs its weights.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "program.h"

namespace eggroll {

namespace {

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

Program::Program(const std::vector<StageSpec>& stages, const std::vector<LeafSpec>& leaves,
                 int width, int vocabulary, int state_size,
                 const std::vector<std::vector<int>>& tables,
                 const std::vector<uint32_t>& mantissas,
                 const std::vector<uint64_t>& log2_breakpoints)
    : embedding_(leaves.size(), false), exact_mantissa_(mantissas), breakpoints_(log2_breakpoints) {
  int score_bits = log2_breakpoints.size() == 255 ? 8 : 4;
  require(mantissas.size() == 16 && log2_breakpoints.size() + 1 == size_t{1} << score_bits,
          "exp2 mantissas or log2 breakpoints: wrong size");
  for (uint32_t m : mantissas) mantissa_.push_back(m >> (16 - score_bits));
  for (size_t i = 0; i < 256; ++i)
    exp2_.push_back(static_cast<int32_t>(mantissa_[i % 16] >> (15 - i / 16)));
  for (const auto& table : tables) {
    require(table.size() == 256, "lookup table: 256 entries are needed");
    for (int v : table) tables_.push_back(static_cast<int8_t>(v));
  }
  for (const auto& [specs, registers, state] : stages) {
    std::vector<Op> ops;
    for (const auto& [kind, out, in, leaf, table] : specs) {
      Op op{static_cast<OpKind>(kind), out, {-1, -1, -1}, leaf, table};
      require(in.size() <= 3, "an operation takes at most three inputs");
      std::copy(in.begin(), in.end(), op.in);
      if (op.kind == OpKind::embed) embedding_.at(static_cast<size_t>(leaf)) = true;
      ops.push_back(op);
    }
    ops_.push_back(std::move(ops));
    registers_.push_back(registers);
  }
  for (size_t i = 0; i < stages.size(); ++i)
    stages_.push_back({ops_[i].data(), static_cast<int>(ops_[i].size()), registers_[i].data(),
                       static_cast<int>(registers_[i].size()), std::get<2>(stages[i])});
  for (size_t i = 0; i < leaves.size(); ++i) {
    auto [rows, cols] = leaves[i];
    require(rows >= 1 && cols >= 0 && cols < 32768, "a leaf's shape is out of range");
    leaves_.push_back({rows, cols, packed_bytes_});
    int64_t inputs = round_up(cols, 4);
    int64_t bytes = cols == 0       ? rows
                    : embedding_[i] ? rows * inputs
                                    : round_up(rows, kTile) * (inputs + 4);
    packed_bytes_ += round_up(bytes, 64);
  }
  plan_ = {stages_.data(),
           static_cast<int>(stages_.size()),
           leaves_.data(),
           static_cast<int>(leaves_.size()),
           width,
           vocabulary,
           state_size,
           reinterpret_cast<const int8_t (*)[256]>(tables_.data()),
           score_bits,
           exp2_.data(),
           mantissa_.data(),
           exact_mantissa_.data(),
           breakpoints_.data()};
  for (const Stage& stage : stages_) {
    require(stage.op_count <= kOps && stage.register_count <= kRegisters,
            "a stage has too many operations or registers");
    require(stage.state >= -1 && stage.state + width <= std::max(state_size, width - 1),
            "a stage's state is out of range");
    for (int i = 0; i < stage.op_count; ++i) check(stage.ops[i], stage);
  }
}

void Program::check(const Op& op, const Stage& stage) const {
  int kind = static_cast<int>(op.kind);
  require(kind >= 0 && kind <= static_cast<int>(OpKind::score),
          "operation " + std::to_string(kind) + " is not known to the cpu engine");
  bool matrix = op.kind == OpKind::linear || op.kind == OpKind::score || op.kind == OpKind::embed;
  bool vector = op.kind == OpKind::norm || op.kind == OpKind::add_bias;
  require(op.out >= 0 && op.out < stage.register_count, "an output register is out of range");
  int size = stage.registers[op.out];
  for (int in : op.in) {
    if (in < 0) continue;
    require(in < stage.register_count, "an input register is out of range");
    require(matrix || stage.registers[in] == size, "registers of one operation differ in size");
    require(!matrix || in != op.out || op.kind == OpKind::score, "a product cannot be in place");
  }
  require(op.leaf < plan_.leaf_count && (op.leaf >= 0) == (matrix || vector), "wrong leaf");
  if (op.kind == OpKind::lookup)
    require(op.table >= 0 && (op.table + 1) * 256 <= static_cast<int>(tables_.size()),
            "a lookup table is missing");
  if (op.leaf < 0) return;
  const Leaf& leaf = plan_.leaves[op.leaf];
  require((leaf.cols > 0) == matrix, "a leaf's shape does not fit its operation");
  if (vector) require(leaf.rows == size, "a vector's size differs from its register's");
  if (op.kind == OpKind::linear)
    require(leaf.rows == size && leaf.cols == stage.registers[op.in[0]], "a matrix does not fit");
  if (op.kind == OpKind::score)
    require(leaf.rows == plan_.vocabulary && leaf.cols == stage.registers[op.in[0]], "head");
  if (op.kind == OpKind::embed)
    require(leaf.rows == plan_.vocabulary && leaf.cols == size, "embedding");
}

void Program::pack(int i, const int8_t* src, int8_t* packed) const {
  const Leaf& leaf = leaves_[static_cast<size_t>(i)];
  int64_t cols = leaf.cols, padded = round_up(cols, 4), tile = kTile * (padded + 4);
  size_t size = static_cast<size_t>(leaf.rows) * static_cast<size_t>(cols ? cols : 1);
  require(!std::memchr(src, 0x80, size), "a weight is -128; int8 weights are -127..127");
  int8_t* dst = packed + leaf.offset;
  if (cols == 0) std::memcpy(dst, src, size);
  for (int64_t o = 0; cols && o < leaf.rows; ++o, src += cols) {
    if (embedding_[static_cast<size_t>(i)]) {
      std::memcpy(dst + o * padded, src, static_cast<size_t>(cols));
      continue;
    }
    int8_t* at = dst + o / kTile * tile;
    int32_t sum = 0;
    for (int64_t k = 0; k < cols; ++k) sum += src[k];
    reinterpret_cast<int32_t*>(at)[o % kTile] = -128 * sum;
    at += kTile * 4 + o % kTile * 4;
    int64_t k = 0;
    for (; k + 4 <= cols; k += 4) std::memcpy(at + k * kTile, src + k, 4);
    if (k < cols) std::memcpy(at + k * kTile, src + k, static_cast<size_t>(cols - k));
  }
}

}  // namespace eggroll
