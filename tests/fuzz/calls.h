// Calls of the functions of engine.h with arguments that fit their program, and with some that do
// not.
#pragma once

#include <functional>
#include <optional>

#include "maker.h"
#include "spec.h"

namespace fuzz {

// A call on a population.
class Call {
 public:
  Call(Input& from, std::shared_ptr<Program> of, int wrong)
      : in(from), make(from, wrong), program(std::move(of)), plan(program->plan()) {
    which = in.draw(0, 6);
    pairs = in.draw(1, 20), T = in.draw(1, in.one_in(8) ? 40 : 5);
    if (make.due()) pairs = 0;
    if (make.due()) T = 0;
    P = 2 * pairs - (make.due() ? 1 : 0), P = std::max(P, 0);
    rank = which == 4 ? 1 : in.draw(1, 3);
    for (int i = 0; i < plan.leaf_count; ++i) add_leaf(plan.leaves[i]);
    longest += in.draw(0, 99);
  }

  std::vector<mx::array> run() {
    // Instruction sets are compared on the same arguments.
    if (!called) prepare();
    return called();
  }

 private:
  void add_leaf(const Leaf& leaf) {
    int length = leaf.cols ? rank * (leaf.rows + leaf.cols) : 2 * leaf.rows;
    longest = std::max(longest, length);
    lengths.push_back(length);
    leaves.push_back(leaf.cols ? mx::Shape{leaf.rows, leaf.cols} : mx::Shape{leaf.rows});
  }

  Packing packed() {
    Packing made;
    for (const mx::Shape& shape : leaves) made.leaves.push_back(make.bytes(shape));
    if (make.due() && !made.leaves.empty()) made.leaves.pop_back();
    return made;
  }

  Noise noise(bool any) {
    mx::array table = make.table(longest);
    std::optional<mx::array> starts;
    if (any) {
      std::vector<int32_t> at;
      for (int length : lengths)
        for (int p = 0; p < pairs; ++p) at.push_back(in.any(0, std::max(0, longest - length)));
      if (!at.empty() && make.due()) in.pick(at) = in.one_in(2) ? in.hostile(longest) : longest;
      starts = array_of(at, {plan.leaf_count, pairs}, mx::int32);
      if (make.due()) starts = make.whole({plan.leaf_count, pairs}, 0, 0);
    }
    return {table, starts, make.number(rank), make.number(in.draw(4, 12))};
  }

  Rows rows() {
    Rows given;
    if (plan.inputs && !make.due()) given.first = make.bytes({P, T, plan.inputs}, -128);
    if (plan.indices && !make.due()) given.second = make.whole({P, T, plan.indices}, -1, 0);
    if (given.second && !make.due()) given.second = features(*given.second);
    return given;
  }

  // Indices of every operation's own leaf, where the array is as it should be.
  mx::array features(mx::array plain) {
    if (plain.shape() != mx::Shape{P, T, plan.indices} || plain.dtype() != mx::int32) return plain;
    mx::eval(plain);
    std::vector<int32_t> v(plain.data<int32_t>(), plain.data<int32_t>() + plain.size());
    each_features(plan, [&](const Op& op) {
      for (size_t row = 0; row < v.size(); row += static_cast<size_t>(plan.indices))
        for (int i = 0; i < op.lists * op.active; ++i)
          v[row + static_cast<size_t>(op.first + i)] = in.any(-1, plan.leaves[op.leaf].rows - 1);
    });
    return array_of(v, plain.shape(), mx::int32);
  }

  // Kinds that fit, and the rest in range.
  Crediting crediting(bool nodes) {
    Crediting c{
        nodes ? 2 : 1, {}, {}, {}, {}, make.number(in.draw(0, 6)), make.number(in.draw(0, 8))};
    size_t n = static_cast<size_t>(plan.leaf_count);
    c.kinds.resize(n);
    for (size_t i = 0; i < n; ++i) {
      c.shifts.push_back(in.one_in(5) ? kSilent : in.draw(0, 8));
      c.owners.push_back(static_cast<int>(i)), c.discounts.push_back(in.draw(0, 15));
    }
    for (int s = 0; s < plan.stage_count; ++s)
      for (int j = 0; j < plan.stages[s].op_count; ++j) {
        const Op& op = plan.stages[s].ops[j];
        if (op.leaf >= 0 && !in.one_in(6))
          c.kinds[static_cast<size_t>(op.leaf)] = static_cast<int>(kind_of(op.kind));
      }
    if (nodes && plan.scored && in.one_in(4))
      c.group = 4, P = std::max(4, P / 4 * 4), pairs = P / 2;
    for (auto* list : {&c.shifts, &c.kinds, &c.owners, &c.discounts})
      if (make.due()) change(in, *list);
    if (make.due()) c.mode = in.hostile(1);
    if (make.due()) c.group = in.hostile(4);
    return c;
  }

  CreditKind kind_of(OpKind kind) {
    if (kind == OpKind::embed) return CreditKind::tokens;
    if (kind == OpKind::features) return CreditKind::features;
    if (kind == OpKind::score && in.one_in(2)) return CreditKind::readout;
    bool matrix = kind == OpKind::linear || kind == OpKind::score || kind == OpKind::sums;
    return matrix ? CreditKind::inputs : CreditKind::scalar;
  }

  mx::array tokens() { return make.whole({P, T}, 0, plan.vocabulary - 1); }
  mx::array state() { return make.bytes({P, plan.state_size}); }
  mx::array signs() {
    return make.whole({plan.leaf_count, pairs, (T + 31) / 32}, INT32_MIN, INT32_MAX);
  }

  void prepare() {
    int threads = make.number(in.draw(0, 3)), block = make.number(in.draw(1, 9));
    bool nodes = in.one_in(2);
    std::optional<Crediting> c;
    if (which == 4 || (which == 1 && in.one_in(2) && rank == 1)) c = crediting(nodes);
    Packing w = packed();
    mx::array read = tokens(), next = tokens(), before = state();
    Rows shown = rows();
    Noise n = noise(which == 4 || c || in.one_in(2));
    auto of = program;
    switch (which) {
      case 0:
        called = [=] {
          return evaluate(of, w.of(of), n, read, next, before, shown, threads, block);
        };
        break;
      case 1: {
        std::optional<mx::array> s;
        if (c && !make.due()) s = signs();
        called = [=] {
          return outputs(of, w.of(of), n, read, before, shown, s, c, threads, block);
        };
        break;
      }
      case 2:
        called = [=] { return logits(of, w.of(of), read, before, shown, threads, block); };
        break;
      case 3:
        called = [=] {
          return likelihoods(of, w.of(of), read, next, before, shown, threads, block);
        };
        break;
      case 4: {
        mx::array s = signs(), d = make.words({pairs, T});
        std::optional<mx::array> v;
        if (!plan.scored || (!c->group && in.one_in(3)))
          v = make.whole({pairs, T}, -kValue, kValue);
        called = [=] {
          return credit(of, w.of(of), n, s, d, *c, read, next, before, shown, v, threads, block);
        };
        break;
      }
      case 5:
        prepare_learn(w, read, next, before, shown, threads);
        break;
      default: {
        mx::array fitness = make.whole({pairs}, -1, 1);
        if (!make.due()) fitness = mx::astype(fitness, mx::int8);
        bool only = in.one_in(2);
        Noise slices = noise(true);
        called = [=] {
          return votes(of, fitness, slices.table, *slices.starts, slices.rank, only, threads);
        };
      }
    }
  }

  void prepare_learn(const Packing& w, const mx::array& read, const mx::array& next,
                     const mx::array& before, const Rows& shown, int threads) {
    mx::array drawn = make.words({P, T});
    std::vector<int> scales;
    std::vector<std::optional<mx::array>> back;
    for (const mx::Shape& shape : leaves) {
      scales.push_back(make.number(in.draw(0, 16)));
      back.emplace_back();
      if (shape.size() == 2 && !in.one_in(4)) back.back() = make.bytes(shape);
      if (make.due()) back.back() = make.bytes(shape, -128);
    }
    if (make.due()) change(in, scales);
    if (make.due()) disarrange(in, back);
    int outputs = 0;
    for (int i = 0; i < plan.output_count; ++i) outputs += plan.outputs[i].size;
    std::optional<mx::array> errors;
    std::optional<Targets> wanted;
    if (in.one_in(2)) wanted = targets();
    if (make.due() == (plan.scored || wanted)) errors = make.bytes({P, T, outputs});
    Rows rows = shown;
    std::optional<mx::array> index;
    if (plan.indices && in.one_in(2)) rows.second = spans(index);
    auto of = program;
    called = [=] {
      return learn(of, w.of(of), read, next, before, rows, index, drawn, scales, back, errors,
                   wanted, threads);
    };
  }

  // Of an index that is made with them.
  mx::array spans(std::optional<mx::array>& index) {
    int most = kActive, rows = kFeatures;
    each_features(plan, [&](const Op& op) {
      most = std::min(most, op.active), rows = std::min(rows, plan.leaves[op.leaf].rows);
    });
    index = make.whole({2 * most}, 0, rows - 1);
    return make.whole({P, T, 2 * lists_of(plan)}, 0, most);
  }

  // Of all outputs, seldom out of their range.
  Targets targets() {
    Targets made{{}, mx::zeros({1})};
    int count = 0;
    for (int i = 0; i < plan.output_count; ++i) {
      made.losses.push_back(make.number(in.draw(0, 3)));
      count += made.losses.back() == 1 ? 1 : made.losses.back() ? plan.outputs[i].size : 0;
    }
    if (make.due()) change(in, made.losses);
    made.values = make.whole({P, T, count}, -1, make.due() ? 1 << 30 : 0);
    return made;
  }

  Input& in;
  Maker make;
  std::shared_ptr<Program> program;
  const Plan& plan;
  int which, pairs, T, P, rank, longest = 1;
  std::vector<int> lengths;
  std::vector<mx::Shape> leaves;
  std::function<std::vector<mx::array>()> called;
};

}  // namespace fuzz
