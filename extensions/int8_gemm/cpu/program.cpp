// Checks a declared program and packs its weights.

#include "program.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "checks.h"

namespace eggroll {

namespace {

const Form& form_of(const std::string& name) {
  for (const Form& form : kForms)
    if (name == form.name) return form;
  throw std::invalid_argument("operation '" + name + "' is not known to the cpu engine");
}

const Form& form_of(OpKind kind) {
  for (const Form& form : kForms)
    if (kind == form.kind) return form;
  throw std::invalid_argument("an operation without a form");
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

std::vector<std::string> operations() {
  std::vector<std::string> names;
  for (const Form& form : kForms) names.push_back(form.name);
  return names;
}

Program::Program(const std::vector<StageSpec>& stages, const std::vector<LeafSpec>& leaves,
                 int width, int vocabulary, int state_size,
                 const std::vector<std::vector<int>>& tables,
                 const std::vector<uint32_t>& mantissas,
                 const std::vector<uint64_t>& log2_breakpoints, int inputs, int indices,
                 const std::vector<OutputSpec>& outputs)
    : embedding_(leaves.size(), false), exact_mantissa_(mantissas), breakpoints_(log2_breakpoints) {
  in_range("the number of stages", static_cast<int64_t>(stages.size()), 1, kStages);
  in_range("the width", width, 1, kSize);
  in_range("the vocabulary", vocabulary, 1, kVocabulary);
  in_range("the size of inputs", inputs, 0, kSize);
  in_range("the number of indices", indices, 0, kFeatures);
  int score_bits = log2_breakpoints.size() == 255 ? 8 : 4;
  require(mantissas.size() == 16 && log2_breakpoints.size() + 1 == size_t{1} << score_bits,
          "exp2 mantissas or log2 breakpoints: wrong size");
  for (uint32_t m : mantissas) mantissa_.push_back(m >> (16 - score_bits));
  for (size_t i = 0; i < 256; ++i)
    exp2_.push_back(static_cast<int32_t>(mantissa_[i % 16] >> (15 - i / 16)));
  for (size_t i = 0; i < 128; ++i)
    for (int j = 0; j < 3; ++j) exp2_bytes_[j][i] = static_cast<uint8_t>(exp2_[128 + i] >> 8 * j);
  for (const auto& table : tables) {
    require(table.size() == 256, "lookup table: 256 entries are needed");
    for (int v : table) {
      in_range("an entry of a lookup table", v, -127, 127);
      tables_.push_back(static_cast<int8_t>(v));
    }
  }
  for (const StageSpec& stage : stages) add_stage(stage);
  for (size_t i = 0; i < stages.size(); ++i)
    stages_.push_back({ops_[i].data(), static_cast<int>(ops_[i].size()), registers_[i].data(),
                       static_cast<int>(registers_[i].size()), std::get<2>(stages[i])});
  int64_t weights = 0;
  for (const LeafSpec& leaf : leaves) {
    add_leaf(leaf);
    weights += int64_t{leaf.first} * std::max(leaf.second, 1);
  }
  require(weights < int64_t{1} << 31, "the network has too many weights");
  for (auto [size, wide] : outputs) outputs_.push_back({size, wide});
  plan_ = {stages_.data(),
           static_cast<int>(stages_.size()),
           nullptr,
           0,
           leaves_.data(),
           static_cast<int>(leaves_.size()),
           width,
           vocabulary,
           state_size,
           reinterpret_cast<const int8_t (*)[256]>(tables_.data()),
           score_bits,
           exp2_.data(),
           exp2_bytes_,
           mantissa_.data(),
           exact_mantissa_.data(),
           breakpoints_.data(),
           inputs,
           indices,
           outputs_.data(),
           static_cast<int>(outputs_.size()),
           false};
  for (const auto& ops : ops_)
    for (const Op& op : ops) plan_.scored |= op.kind == OpKind::score;
  for (const Stage& stage : stages_) check(stage);
  check_flow();
  if (plan_.scored) check_powers();
  for (auto& ops : ops_) chain(ops), mark(ops), mark_last(ops);
  parts_ = parts_of(stages_);
  plan_.parts = parts_.data(), plan_.part_count = static_cast<int>(parts_.size());
}

// Whose results products read, which may then be written as they take them.
void Program::mark(std::vector<Op>& ops) {
  bool other[kRegisters] = {true, true}, product[kRegisters] = {};  // x and s are read later
  for (const Op& op : ops)
    for (int in : op.in)
      if (in >= 0) (multiplies(op.kind) ? product : other)[in] = true;
  for (Op& op : ops) {
    const bool alone = op.kind == OpKind::norm || op.kind == OpKind::forget ||
                       (op.kind == OpKind::linear && !op.chain);
    op.multiplied = product[op.out] && (op.kind == OpKind::mix || (alone && !other[op.out]));
  }
}

// Whose results the caller alone has, by whatever operations but matrices.
void Program::mark_last(std::vector<Op>& ops) {
  for (size_t j = ops.size(); j-- > 0;) {
    Op& op = ops[j];
    if (!writes(op.kind) || op.out < 2) continue;  // x and s are read later
    bool read = false, last = true;
    for (size_t i = j + 1; i < ops.size(); ++i) {
      const Op& later = ops[i];
      if (std::find(later.in, later.in + 3, op.out) != later.in + 3) {
        read = true;
        last &= later.kind == OpKind::output || (later.last && later.kind != OpKind::linear);
      }
      if (writes(later.kind) && later.out == op.out) break;
    }
    op.last = read && last;
  }
}

// A bias and a relu that follow a linear operation, and alone read what was written just before,
// are done where its outputs still are in registers or the first cache.
void Program::chain(std::vector<Op>& ops) {
  int reads[kRegisters] = {};
  for (const Op& op : ops)
    for (int in : op.in)
      if (in >= 0) ++reads[in];
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != OpKind::linear) continue;
    for (size_t j = i + 1; j < ops.size() && j <= i + 2; ++j) {
      const Op &last = ops[j - 1], &op = ops[j];
      bool fits = op.kind == OpKind::relu || (op.kind == OpKind::bias && j == i + 1);
      // x and s are read later, too.
      bool alone = op.out == last.out || (reads[last.out] == 1 && last.out > 1);
      if (!fits || op.in[0] != last.out || !alone || op.out == ops[i].in[0]) break;
      ops[i].chain = static_cast<int>(j - i);
      if (op.kind == OpKind::relu) break;
    }
  }
}

void Program::add_stage(const StageSpec& stage) {
  std::vector<Op> ops;
  for (const auto& [name, out, in, leaf, table, numbers] : std::get<0>(stage)) {
    const Form& form = form_of(name);
    require(in.size() == form.inputs, name + " takes " + std::to_string(form.inputs) + " inputs");
    require(numbers.size() == form.numbers, name + " has the wrong numbers");
    Op op{form.kind, out, {-1, -1, -1}, leaf, table, 0, 0, 0, 0, 0, 0, false, false};
    std::copy(in.begin(), in.end(), op.in);
    if (form.numbers == 1) op.place = numbers[0];
    if (form.numbers == 4)
      op.lists = numbers[0], op.active = numbers[1], op.first = numbers[2], op.shift = numbers[3];
    require(
        leaf < static_cast<int>(embedding_.size()) && (leaf < 0) == (form.leaf == LeafForm::none),
        name + " has the wrong leaf");
    if (form.leaf == LeafForm::embedding) embedding_[static_cast<size_t>(leaf)] = true;
    ops.push_back(op);
  }
  ops_.push_back(std::move(ops));
  registers_.push_back(std::get<1>(stage));
}

void Program::add_leaf(const LeafSpec& leaf) {
  auto [rows, cols] = leaf;
  in_range("a leaf's number of rows", rows, 1, kFeatures);
  in_range("a leaf's number of columns", cols, 0, kSize);
  leaves_.push_back({rows, cols, 0});
}

void Program::check(const Stage& stage) const {
  require(stage.op_count <= kOps && stage.register_count <= kRegisters,
          "a stage has too many operations or registers");
  require(stage.register_count >= 2 && stage.registers[0] == plan_.width &&
              stage.registers[1] == plan_.width,
          "registers x and s of a stage have the program's width");
  for (int i = 0; i < stage.register_count; ++i)
    require(stage.registers[i] >= 1 && stage.registers[i] <= kSize, "a register's size");
  for (int i = 0; i < stage.op_count; ++i) check(stage.ops[i], stage);
}

void Program::check(const Op& op, const Stage& stage) const {
  const Form& form = form_of(op.kind);
  bool matrix = form.leaf == LeafForm::matrix || form.leaf == LeafForm::embedding;
  require(op.out >= 0 && op.out < stage.register_count, "an output register is out of range");
  int size = stage.registers[op.out];
  bool other_size = matrix || op.kind == OpKind::concat;
  for (size_t i = 0; i < form.inputs; ++i) {
    int in = op.in[i];
    require(in >= 0 && in < stage.register_count, "an input register is out of range");
    if (!writes(op.kind)) continue;
    require(other_size || stage.registers[in] == size, "registers of one operation differ in size");
    require(!other_size || in != op.out, form.name + std::string(" cannot be in place"));
  }
  if (op.kind == OpKind::lookup)
    in_range("the index of a lookup table", op.table, 0,
             static_cast<int64_t>(tables_.size() / 256) - 1);
  check_rows(op, stage);
  if (op.leaf >= 0) check_leaf(op, stage);
}

// What comes from the caller's rows, or goes to the caller.
void Program::check_rows(const Op& op, const Stage& stage) const {
  int size = stage.registers[op.out];
  if (op.kind == OpKind::input)
    require(size == plan_.inputs, "input writes a register of the row's size");
  if (op.kind == OpKind::concat)
    require(stage.registers[op.in[0]] + stage.registers[op.in[1]] == size,
            "concat writes a register of both sizes");
  if (op.kind == OpKind::features)
    require(op.lists >= 1 && op.lists <= kLists && op.active >= 1 && op.active <= kActive &&
                op.first >= 0 && op.first <= plan_.indices - op.lists * op.active &&
                op.shift >= 0 && op.shift < 8,
            "features: numbers are out of range");
  if (op.kind != OpKind::output && op.kind != OpKind::sums) return;
  require(op.place >= 0 && op.place < plan_.output_count, "an output is out of range");
  const OutputForm& form = plan_.outputs[op.place];
  require(form.wide == (op.kind == OpKind::sums), "an output has the wrong type");
  require(form.size == (form.wide ? plan_.leaves[op.leaf].rows : stage.registers[op.in[0]]),
          "an output has the wrong size");
}

void Program::check_leaf(const Op& op, const Stage& stage) const {
  LeafForm form = form_of(op.kind).leaf;
  const Leaf& leaf = plan_.leaves[op.leaf];
  int size = stage.registers[op.out];
  require((leaf.cols > 0) == (form != LeafForm::vector),
          "a leaf's shape does not fit its operation");
  if (form == LeafForm::vector)
    require(leaf.rows == size, "a vector's size differs from its register's");
  if (op.kind == OpKind::features)
    require(int64_t{op.lists} * leaf.cols == size && int64_t{op.lists - 1} * leaf.cols <= leaf.rows,
            "features: their lists do not fit the leaf and its noise");
  if (op.kind == OpKind::sums)
    require(leaf.cols == stage.registers[op.in[0]], "a matrix does not fit");
  if (op.kind == OpKind::linear)
    require(leaf.rows == size && leaf.cols == stage.registers[op.in[0]], "a matrix does not fit");
  if (op.kind == OpKind::score)
    require(leaf.rows == plan_.vocabulary && leaf.cols == stage.registers[op.in[0]], "head");
  if (op.kind == OpKind::embed)
    require(leaf.rows == plan_.vocabulary && leaf.cols == size, "embedding");
}

// Registers hold values when they are read: x from the stage before, s where there is a state, and
// the others once an operation has written them.
void Program::check_flow() const {
  std::vector<bool> used(leaves_.size(), false), given(outputs_.size(), false);
  int64_t state = 0;
  int scores = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    bool has_state = stage.state >= 0, last = i + 1 == stages_.size();
    require(stage.state == (has_state ? state : -1), "the states of stages lie one after another");
    state += has_state ? plan_.width : 0;
    bool written[kRegisters] = {i > 0, has_state};
    for (const Op& op : ops_[i]) {
      for (int in : op.in)
        require(in < 0 || written[in], "a register is read before it is written");
      require(op.out != 1 || has_state, "s is written in a stage without state");
      if (op.leaf >= 0) {
        require(!used[static_cast<size_t>(op.leaf)], "two operations have one leaf");
        used[static_cast<size_t>(op.leaf)] = true;
      }
      require(op.kind != OpKind::score || last, "the score is in the last stage");
      scores += op.kind == OpKind::score;
      if (op.kind == OpKind::output || op.kind == OpKind::sums) {
        require(!given[static_cast<size_t>(op.place)], "two operations have one output");
        given[static_cast<size_t>(op.place)] = true;
      }
      if (writes(op.kind)) written[op.out] = true;
    }
    require(last || written[0], "a stage does not write x");
  }
  require(scores == plan_.scored && (scores || !given.empty()),
          "a program has one score or outputs");
  require(std::find(given.begin(), given.end(), false) == given.end(), "an output is never given");
  require(state == plan_.state_size, "state_size is not that of the stages");
  require(std::find(used.begin(), used.end(), false) == used.end(), "no operation uses a leaf");
}

// What sums of powers of two are made of and compared with: none is zero, so no logarithm is of 0.
void Program::check_powers() const {
  for (uint32_t m : exact_mantissa_) require(m >> 31, "exp2 mantissas must be in 2^31..2^32 - 1");
  for (size_t i = 0; i < breakpoints_.size(); ++i)
    require(breakpoints_[i] > (i ? breakpoints_[i - 1] : uint64_t{1} << 63),
            "log2 breakpoints must rise from above 2^63");
}

const Program::Layout& Program::layout(const Kernels& k) const {
  std::lock_guard<std::mutex> guard(lock_);
  auto [at, made] = layouts_.try_emplace(&k, Layout{leaves_, 0});
  Layout& found = at->second;
  for (size_t i = 0; made && i < leaves_.size(); ++i) {
    Leaf& leaf = found.leaves[i];
    leaf.offset = found.bytes;
    int64_t bytes = leaf.cols == 0  ? leaf.rows
                    : embedding_[i] ? leaf.rows * round_up(leaf.cols, 4)
                                    : static_cast<int64_t>(k.weight_bytes(leaf.rows, leaf.cols));
    found.bytes += round_up(bytes, 64);
  }
  return found;
}

Plan Program::plan(const Kernels& k) const {
  Plan plan = plan_;
  plan.leaves = layout(k).leaves.data();
  return plan;
}

int64_t Program::packed_bytes(const Kernels& k) const { return layout(k).bytes; }

bool Program::lies_packed(int i) const {
  const size_t at = static_cast<size_t>(i);
  return embedding_[at] && leaves_[at].cols % 4 == 0;
}

void Program::check_weights(int i, const int8_t* leaf) const {
  const auto& [rows, cols, offset] = leaves_[static_cast<size_t>(i)];
  require(
      !std::memchr(leaf, 0x80, static_cast<size_t>(rows) * static_cast<size_t>(cols ? cols : 1)),
      "a weight is -128; int8 weights are -127..127");
}

void Program::pack(const Kernels& k, int i, const int8_t* src, int8_t* packed) const {
  const Leaf& leaf = layout(k).leaves[static_cast<size_t>(i)];
  size_t rows = static_cast<size_t>(leaf.rows), cols = static_cast<size_t>(leaf.cols);
  check_weights(i, src);
  int8_t* to = packed + leaf.offset;
  if (cols == 0) return void(std::memcpy(to, src, rows));
  if (!embedding_[static_cast<size_t>(i)]) return k.pack(src, leaf.rows, leaf.cols, to);
  const size_t padded = (cols + 3) / 4 * 4;
  if (lies_packed(i)) return void(std::memcpy(to, src, rows * cols));
  for (size_t o = 0; o < rows; ++o) std::memcpy(to + o * padded, src + o * cols, cols);
}

}  // namespace eggroll
