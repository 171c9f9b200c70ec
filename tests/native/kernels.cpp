// Every unit this machine can run against reference.h, over the shapes and values kernels go wrong
// at: sizes 2^n and 2^n +- 1, values at the ends of the range, sums that cancel at the ends.
//
// linear: products, low-rank noise, division, clip and the loss, seen through logits and scores,
// and what exact losses are made of. elementwise: the other operations, seen through the state.
// votes: whole int32 sums.
//
// kernels [n]: every n-th case only, where time is short.

#include <iostream>
#include <memory>
#include <string>

#include "program.h"
#include "reference.h"
#include "trial.h"
#include "units.h"
#include "values.h"

using namespace eggroll;

namespace {

const std::vector<int> kMembers = {2, 30, 32, 34};
const std::vector<int> kShifts = {8, 4, 12, 0, 20, 7, 6};

std::vector<const Kernels*> units;
int failures = 0, every = 1, turn = 0;

// Whether the next case is among the chosen ones; counts those in `done`.
bool due(int& done) {
  bool chosen = turn++ % every == 0;
  done += chosen;
  return chosen;
}

void differs(const Kernels& k, const std::string& name) {
  if (++failures <= 20) std::cout << "  differs: " << k.name << " " << name << "\n";
}

Result evaluate(const Kernels& k, const Trial& t, bool scored) {
  const Plan plan = t.program->plan(k);
  const Packed packed(*t.program, k, t.weights);
  size_t members = static_cast<size_t>(t.members);
  size_t logits = scored ? members * static_cast<size_t>(plan.vocabulary) : 0;
  Result out{std::vector<int16_t>(members), Bytes(t.state.size()), Bytes(logits), {}, {}};
  Job job{plan,
          packed.weights(),
          t.table.data(),
          t.starts.empty() ? nullptr : t.starts.data(),
          t.rank,
          t.shift,
          t.tokens.data(),
          t.targets.data(),
          t.state.data(),
          out.state.data(),
          out.scores.data(),
          out.logits.data(),
          t.members,
          1};
  run_blocks(k, job);
  if (!scored) return out;
  out.hits.resize(members), out.totals.resize(members);
  job.scores = nullptr, job.logits = nullptr;
  job.hits = out.hits.data(), job.totals = out.totals.data();
  run_blocks(k, job);
  return out;
}

void compare(const Trial& t, const Result& want) {
  for (const Kernels* k : units)
    if (evaluate(*k, t, !want.logits.empty()) != want) differs(*k, t.name);
}

std::unique_ptr<Program> program(const std::vector<StageSpec>& stages,
                                 const std::vector<LeafSpec>& leaves, int width, int vocabulary,
                                 int state, const std::vector<std::vector<int>>& tables = {}) {
  std::vector<uint32_t> mantissas;
  for (int f = 0; f < 16; ++f) mantissas.push_back(reference::mantissa(f));
  std::vector<uint64_t> breakpoints;  // as exact as sums below 2^53 can tell
  for (int f = 1; f < 16; ++f)
    breakpoints.push_back(static_cast<uint64_t>(std::ceil(std::exp2(63 + f / 16.0))));
  return std::make_unique<Program>(stages, leaves, width, vocabulary, state, tables, mantissas,
                                   breakpoints);
}

OpSpec op(const char* name, int out, std::vector<int> in, int leaf = -1) {
  return {name, out, std::move(in), leaf, 0, {}};
}

Ints random_starts(const std::vector<LeafSpec>& leaves, int pairs, int rank, size_t table) {
  Ints starts;
  for (auto [rows, cols] : leaves) {
    int length = cols ? rank * (rows + cols) : 2 * rows;
    for (int p = 0; p < pairs; ++p) starts.push_back(draw(0, static_cast<int>(table) - length));
  }
  return starts;
}

// ---- linear ----------------------------------------------------------------------------------

struct Values {
  const char* name;
  Fill weights, inputs, noise;
};
const std::vector<Values> kValues = {
    {"top", Fill::top, Fill::top, Fill::top},
    {"bottom", Fill::bottom, Fill::bottom, Fill::bottom},
    {"opposite", Fill::bottom, Fill::top, Fill::alternating},
    {"alternating", Fill::alternating, Fill::alternating, Fill::top},
    {"ones", Fill::ones, Fill::ones, Fill::ones},
    {"cancelling", Fill::balanced, Fill::near, Fill::ends},
    {"cancelled", Fill::near, Fill::balanced, Fill::any},
    {"any", Fill::any, Fill::any, Fill::any},
};

// K inputs (the state) -> O outputs -> V logits, so padding of O is the second product's input.
void linear_case(int inputs, int outputs, int vocabulary, const Values& values, int rank, int shift,
                 int members) {
  StageSpec stage{{op("linear", 2, {1}, 0), op("score", 0, {2}, 1)}, {inputs, inputs, outputs}, 0};
  std::vector<LeafSpec> leaves = {{outputs, inputs}, {vocabulary, outputs}};
  Trial t{"linear " + std::to_string(inputs) + " x " + std::to_string(outputs) + " x " +
              std::to_string(vocabulary) + ", " + values.name + ", rank " + std::to_string(rank) +
              ", shift " + std::to_string(shift) + ", members " + std::to_string(members),
          program({stage}, leaves, inputs, vocabulary, inputs),
          {fill(values.weights, static_cast<size_t>(outputs) * inputs, static_cast<size_t>(inputs)),
           fill(Fill::any, static_cast<size_t>(vocabulary) * outputs)},
          fill(values.noise, static_cast<size_t>(rank) * (inputs + outputs + vocabulary) + 99),
          {},
          rank,
          shift,
          members,
          Ints(members, 1),
          {},
          fill(values.inputs, static_cast<size_t>(members) * inputs, static_cast<size_t>(inputs))};
  if (rank) t.starts = random_starts(leaves, members / 2, rank, t.table.size());
  for (int m = 0; m < members; ++m) t.targets.push_back(draw(0, vocabulary - 1));
  compare(t, two_products(t, inputs, outputs, vocabulary));
}

#include "bounds.h"

int linear_cases() {
  int count = 0, done = bound_cases();
  for (const Values& values : kValues)
    for (int inputs : kSizes)
      for (int outputs : kSizes) {
        int vocabulary = kSizes[static_cast<size_t>(count * 7 % 20)];
        if (due(done))
          linear_case(inputs, outputs, vocabulary, values, 1 + count % 3,
                      kShifts[static_cast<size_t>(count % 7)],
                      kMembers[static_cast<size_t>(count / 3 % 4)]);
        ++count;
      }
  for (const Values& values : kValues)
    for (int inputs : kWide) {
      if (due(done)) linear_case(inputs, 9 + count % 3 * 30, 40, values, 1 + count % 2, 8, 34);
      ++count;
    }
  for (const Values& values : kValues) {
    if (due(done)) linear_case(33, 9, 300, values, 0, 8, 33);  // no noise: no need of pairs
    if (due(done)) linear_case(1100, 3, 2, values, 1, 8, 2);   // x.B.A passes 2^31 and wraps
    if (due(done)) linear_case(1100, 3, 2, values, 3, 20, 34);
  }
  return done;
}

// ---- elementwise -----------------------------------------------------------------------------

// What comes out of one operation on a member's two inputs a and b.
using Expected = Bytes (*)(const Trial&, int member, const Bytes& a, const Bytes& b);

template <typename F>
Bytes each(const Bytes& a, const Bytes& b, F f) {
  Bytes y;
  for (size_t i = 0; i < a.size(); ++i) y.push_back(reference::clip(f(a[i], b[i])));
  return y;
}

int8_t looked_up(int8_t v) { return static_cast<int8_t>(v * 3 % 128); }

struct Operation {
  const char* name;
  std::vector<OpSpec> ops;  // a is register 0, b and the result are register 1
  std::vector<LeafSpec> leaves;
  Expected expected;
};

// The first leaf is an embedding [3, width], the second a vector [width]. Token 2 throughout.
std::vector<Operation> operations(int width) {
  LeafSpec table{3, width}, vector{width, 0};
  return {
      {"add",
       {op("add", 1, {0, 1})},
       {},
       [](const Trial&, int, const Bytes& a, const Bytes& b) {
         return each(a, b, [](int x, int y) { return x + y; });
       }},
      {"forget",
       {op("forget", 1, {0, 1})},
       {},
       [](const Trial&, int, const Bytes& a, const Bytes& b) {
         return each(a, b, [](int x, int y) { return ((x + 127) * y) >> 8; });
       }},
      {"lookup",
       {op("lookup", 1, {0})},
       {},
       [](const Trial&, int, const Bytes& a, const Bytes& b) {
         return each(a, b, [](int x, int) { return looked_up(static_cast<int8_t>(x)); });
       }},
      {"mix",
       {op("embed", 2, {}, 0), op("mix", 1, {0, 2, 1})},
       {table},
       [](const Trial& t, int m, const Bytes& a, const Bytes& b) {
         Bytes h = reference::embed(t.weights[0], static_cast<int>(a.size()), 2, t.noise(0, m)), y;
         for (size_t i = 0; i < a.size(); ++i)
           y.push_back(reference::clip(b[i] + (((a[i] + 127) * (h[i] - b[i])) >> 8)));
         return y;
       }},
      {"add_bias",
       {op("add_bias", 1, {0, 1}, 0)},
       {vector},
       [](const Trial& t, int m, const Bytes& a, const Bytes& b) {
         Bytes w = reference::vector(t.weights[0], t.noise(0, m)), y;
         for (size_t i = 0; i < a.size(); ++i) y.push_back(reference::clip(a[i] + b[i] + w[i]));
         return y;
       }},
      {"bias",
       {op("bias", 1, {0}, 0)},
       {vector},
       [](const Trial& t, int m, const Bytes& a, const Bytes&) {
         return each(a, reference::vector(t.weights[0], t.noise(0, m)),
                     [](int x, int w) { return x + w; });
       }},
      {"relu",
       {op("relu", 1, {0})},
       {},
       [](const Trial&, int, const Bytes& a, const Bytes& b) {
         return each(a, b, [](int x, int) { return x < 0 ? 0 : x; });
       }},
      {"norm",
       {op("norm", 1, {0}, 0)},
       {vector},
       [](const Trial& t, int m, const Bytes& a, const Bytes&) {
         return reference::norm(a, reference::vector(t.weights[0], t.noise(0, m)));
       }},
  };
}

// Stage 0 hands on its state as a; stage 1 has b as its state.
void elementwise_case(const Operation& what, int width, int members, Fill weights, Bytes state,
                      bool noise, int rank) {
  std::vector<int> identity, other;
  for (int i = 0; i < 256; ++i) {
    identity.push_back(i == 128 ? -127 : static_cast<int8_t>(i));  // no register holds -128
    other.push_back(looked_up(static_cast<int8_t>(i)));
  }
  StageSpec first{{{"lookup", 0, {1}, -1, 1, {}}}, {width, width}, 0};
  StageSpec second{what.ops, {width, width, width}, width};
  std::vector<LeafSpec> leaves = what.leaves;
  int head = static_cast<int>(leaves.size());
  leaves.emplace_back(3, width);
  std::get<0>(second).push_back(op("score", 0, {0}, head));
  Trial t{std::string(what.name) + " of " + std::to_string(width) + ", members " +
              std::to_string(members) + ", rank " + std::to_string(noise ? rank : 0),
          program({first, second}, leaves, width, 3, 2 * width, {other, identity}),
          {},
          fill(rank % 2 ? Fill::any : Fill::ends, static_cast<size_t>(rank) * (width + 3) * 2 + 99),
          {},
          rank,
          kShifts[static_cast<size_t>(width % 7)],
          members,
          Ints(members, 2),
          Ints(members, 0),
          std::move(state)};
  for (auto [rows, cols] : leaves)
    t.weights.push_back(fill(weights, static_cast<size_t>(rows) * std::max(cols, 1)));
  if (noise) t.starts = random_starts(leaves, members / 2, rank, t.table.size());
  Result want;
  for (int m = 0; m < members; ++m) {
    Bytes a = t.state_of(m, 0, width), b = t.state_of(m, width, width);
    Bytes y = what.expected(t, m, a, b);
    Bytes logits = reference::linear(t.weights.back(), 3, a, t.noise(head, m));
    want.scores.push_back(static_cast<int16_t>(reference::score(logits, 0)));
    want.state.insert(want.state.end(), a.begin(), a.end());
    want.state.insert(want.state.end(), y.begin(), y.end());
  }
  compare(t, want);
}

// Members whose values reach from none to all of the range, so that a norm's mean takes each value.
Bytes rising(int members, int width) {
  Bytes state;
  for (int m = 0; m < members; ++m)
    for (int i = 0; i < 2 * width; ++i) {
      int top = (53 * m + 127) % 128;  // each of 0..127 in turn, the largest first
      state.push_back(static_cast<int8_t>(m % 3 ? draw(-top, top) : (i % 2 ? top : -top)));
    }
  return state;
}

// Every a in -127..127 with every b, over 255 * 255 / width members.
Bytes every_two(int width, int members) {
  Bytes state(static_cast<size_t>(2 * width) * members);
  for (int i = 0; i < width * members; ++i) {
    size_t at = static_cast<size_t>(i / width * 2 * width + i % width);
    state[at] = static_cast<int8_t>(i % 255 - 127);
    state[at + static_cast<size_t>(width)] = static_cast<int8_t>(i / 255 % 255 - 127);
  }
  return state;
}

int elementwise_cases() {
  int count = 0, done = 0;
  for (int width : kSizes)
    for (const Operation& what : operations(width))
      for (int rank : {1, 2, 3}) {
        int members = kMembers[static_cast<size_t>(count % 4)];
        if (due(done))
          elementwise_case(what, width, members, Fill::any, rising(members, width), rank < 3, rank);
        ++count;
      }
  for (int width : kWide)
    for (const Operation& what : operations(width))
      if (due(done))
        elementwise_case(what, width, 34, Fill::any, rising(34, width), true, 1 + width % 3);
  constexpr int kWidth = 129, kAll = 506;  // 129 * 506 > 255 * 255
  for (const Operation& what : operations(kWidth))
    for (Fill weights : {Fill::top, Fill::bottom, Fill::ones, Fill::any}) {
      if (due(done))
        elementwise_case(what, kWidth, kAll, weights, every_two(kWidth, kAll), false, 1);
      if (due(done)) elementwise_case(what, kWidth, kAll, weights, rising(kAll, kWidth), true, 1);
    }
  return done;
}

// ---- votes -----------------------------------------------------------------------------------

void votes_case(int rows, int cols, int pairs, int fit, Fill noise, int rank, bool signs) {
  Bytes table = fill(noise, static_cast<size_t>(rank * (rows + cols) + 2 * rows + 99)), fitness;
  Ints starts = random_starts({{rows, cols}}, pairs, rank, table.size());
  for (int p = 0; p < pairs; ++p)
    fitness.push_back(static_cast<int8_t>(fit == 2 ? draw(-1, 1) : fit));
  Ints want = reference::votes(rows, cols, table, starts, fitness, rank, signs);
  VoteJob job{{rows, cols, 0}, table.data(), starts.data(), fitness.data(), rank, signs};
  for (const Kernels* k : units) {
    Ints z(want.size(), 0);
    Scratch scratch(k->vote_bytes(job));
    run_vote(*k, job, 0, pairs / 3, z.data(), scratch.p);  // in two parts, as threads share them
    run_vote(*k, job, pairs / 3, pairs, z.data(), scratch.p);
    if (z != want)
      differs(*k, "votes " + std::to_string(rows) + " x " + std::to_string(cols) + ", pairs " +
                      std::to_string(pairs) + ", fitness " + std::to_string(fit) + ", noise " +
                      std::to_string(static_cast<int>(noise)) + ", rank " + std::to_string(rank) +
                      (signs ? ", signs" : ""));
  }
}

int votes_cases() {
  int count = 0, done = 0;
  const std::vector<LeafSpec> shapes = {{1, 1}, {8, 32}, {9, 33}, {7, 31}, {33, 0}};
  for (int pairs : {1, 2, 3, 4, 5, 255, 256, 257})
    for (int fit : {1, -1, 0, 2})
      for (Fill noise : {Fill::top, Fill::bottom, Fill::alternating, Fill::ones, Fill::any})
        for (bool signs : {false, true})
          for (auto [rows, cols] : shapes) {
            if (due(done)) votes_case(rows, cols, pairs, fit, noise, 1 + count % 3, signs);
            ++count;
          }
  for (int rows : kSizes)
    for (int cols : kSizes) {
      if (due(done)) votes_case(rows, cols, 1 + count % 9, 2, Fill::ends, 1 + count % 3, false);
      ++count;
    }
  for (int cols : kWide)
    if (due(done)) votes_case(cols == 256 ? 257 : 9, cols, 257, 2, Fill::any, 1, false);
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) every = std::atoi(argv[1]);
  units = runnable_units();
  int linear = linear_cases(), elementwise = elementwise_cases(), votes = votes_cases();
  for (const Kernels* k : units)
    std::cout << k->name << ": " << linear << " linear, " << elementwise << " elementwise, "
              << votes << " votes cases compared\n";
  if (failures) std::cout << failures << " differ\n";
  return failures ? 1 : 0;
}
