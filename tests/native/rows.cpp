// What members are shown and what the caller has, by every unit against reference.h: rows of inputs
// and of sparse features, joined, put out as they are and as sums, at the sizes kernels go wrong
// at.
//
// rows [n]: every n-th case only, where time is short.

#include <iostream>
#include <memory>
#include <string>

#include "program.h"
#include "reference.h"
#include "units.h"
#include "values.h"

using namespace eggroll;

namespace {

using Ints = std::vector<int32_t>;

constexpr int kCount = 70, kRows = 2, kOutputs = 9;  // features, rows of a member, sums

struct Shape {
  int inputs, width, lists, active, shift, members, rank, by;
  Fill weights;
};

std::vector<const Kernels*> units;
int failures = 0;

// What all units are given, and what must come out.
struct Case {
  std::unique_ptr<Program> program;
  Shape shape;
  std::vector<Bytes> weights;
  Bytes table, inputs, joined;
  Ints starts, tokens, features, sums;
};

std::unique_ptr<Program> program_of(const Shape& s) {
  int joined = s.inputs + s.lists * s.width;
  StageSpec stage{{{"input", 2, {}, -1, 0, {}},
                   {"features", 3, {}, 0, 0, {s.lists, s.active, 1, s.by}},
                   {"concat", 4, {2, 3}, -1, 0, {}},
                   {"output", 0, {4}, -1, 0, {0}},
                   {"sums", 0, {4}, 1, 0, {1}}},
                  {1, 1, s.inputs, s.lists * s.width, joined},
                  -1};
  std::vector<uint32_t> mantissas(16, 1);
  std::vector<uint64_t> breakpoints(15, 1);
  std::vector<LeafSpec> leaves = {{kCount + s.lists * s.width, s.width}, {kOutputs, joined}};
  std::vector<OutputSpec> outputs = {{joined, false}, {kOutputs, true}};
  return std::make_unique<Program>(std::vector<StageSpec>{stage}, leaves, 1, 2, 0,
                                   std::vector<std::vector<int>>{}, mantissas, breakpoints,
                                   s.inputs, 2 + s.lists * s.active, outputs);
}

// Indices of a row, one of its own before and after the lists: the same as those of the member
// before, or none, or any, or one feature over and over.
void push_features(Ints& to, const Shape& s) {
  size_t row = static_cast<size_t>(2 + s.lists * s.active), how = chance() % 4;
  for (size_t i = 0; i < row; ++i) {
    int one = how == 1 ? -1 : how == 2 ? kCount - 1 : draw(-3, kCount - 1);
    bool copy = how == 0 && to.size() >= kRows * row;
    to.push_back(copy ? to[to.size() - kRows * row] : std::max(one, -1));
  }
}

reference::Noise noise_of(const Case& c, int leaf, int member) {
  if (!c.shape.rank) return {nullptr, 0, 0, 1};
  int start = c.starts[static_cast<size_t>(leaf * (c.shape.members / 2) + member / 2)];
  return {c.table.data() + start, c.shape.rank, c.shape.shift, member % 2 ? -1 : 1};
}

// One row of one member, from where its inputs and features lie.
void expect(Case& c, const Bytes& e, const Bytes& w, int member, size_t row) {
  const Shape& s = c.shape;
  Bytes x;
  for (int i = 0; i < s.inputs; ++i)
    x.push_back(std::max<int8_t>(c.inputs[row * s.inputs + static_cast<size_t>(i)], -127));
  const int32_t* from = c.features.data() + row * (2 + s.lists * s.active) + 1;
  for (int l = 0; l < s.lists; ++l, from += s.active) {
    std::vector<int> list(from, from + s.active);
    Bytes y = reference::features(e, s.width, list, s.by, noise_of(c, 0, member));
    x.insert(x.end(), y.begin(), y.end());
  }
  c.joined.insert(c.joined.end(), x.begin(), x.end());
  for (int64_t v : reference::sums(w, kOutputs, x, noise_of(c, 1, member)))
    c.sums.push_back(static_cast<int32_t>(v));
}

Case case_of(const Shape& s) {
  Case c{program_of(s), s, {}, {}, {}, {}, {}, {}, {}, {}};
  const Plan& plan = c.program->plan();
  Bytes e = fill(s.weights, static_cast<size_t>(plan.leaves[0].rows * plan.leaves[0].cols));
  Bytes w = fill(Fill::any, static_cast<size_t>(plan.leaves[1].rows * plan.leaves[1].cols));
  c.weights = {e, w};
  int rank = std::max(s.rank, 1);
  int longest = 0;
  for (int i = 0; i < 2; ++i)
    longest = std::max(longest, rank * (plan.leaves[i].rows + plan.leaves[i].cols));
  c.table = fill(s.weights == Fill::any ? Fill::ends : Fill::any, longest + 99);
  for (int i = 0; i < 2 * (s.members / 2); ++i) c.starts.push_back(draw(0, 99));
  for (int m = 0; m < s.members; ++m)
    for (int t = 0; t < kRows; ++t) {
      c.tokens.push_back(1);
      for (int i = 0; i < s.inputs; ++i) c.inputs.push_back(static_cast<int8_t>(draw(-128, 127)));
      push_features(c.features, s);
      expect(c, e, w, m, c.tokens.size() - 1);
    }
  return c;
}

std::string name_of(const Shape& s) {
  std::string name = "rows";
  for (int n : {s.inputs, s.width, s.lists, s.active, s.shift, s.members, s.rank, s.by})
    name += " " + std::to_string(n);
  return name;
}

void compare(const Shape& shape) {
  Case c = case_of(shape);
  for (const Kernels* k : units) {
    Bytes joined(c.joined.size());
    Ints sums(c.sums.size());
    void* outputs[] = {joined.data(), sums.data()};
    Job job{};
    const Packed packed(*c.program, *k, c.weights);
    job.plan = c.program->plan(*k);
    job.weights = packed.weights();
    job.noise = c.table.data();
    job.starts = shape.rank ? c.starts.data() : nullptr;
    job.rank = std::max(shape.rank, 1);
    job.shift = shape.shift;
    job.tokens = job.targets = c.tokens.data();
    job.inputs = c.inputs.data();
    job.features = c.features.data();
    job.members = shape.members;
    job.tokens_per_member = kRows;
    job.outputs = outputs;
    run_blocks(*k, job);
    if (joined == c.joined && sums == c.sums) continue;
    if (++failures <= 20) std::cout << "  differs: " << k->name << " " << name_of(shape) << "\n";
  }
}

// Every size of inputs beside every size of features; all else takes turns.
int cases(size_t every) {
  const std::vector<int> members = {2, 34, 30, 32}, shifts = {8, 4, 12, 0};
  const std::vector<int> actives = {1, 3, 32, 256};
  const std::vector<Fill> weights = {Fill::any, Fill::top, Fill::bottom, Fill::ends};
  // Without noise there is no need of pairs.
  std::vector<Shape> shapes = {{33, 5, 8, 9, 8, 33, 0, 1, Fill::any}};
  for (int inputs : kSizes)
    for (int width : kSizes) {
      size_t i = shapes.size();
      shapes.push_back({inputs, width, 1 + static_cast<int>(i % 3), actives[i / 3 % 4],
                        shifts[i % 4], members[i / 2 % 4], static_cast<int>(i / 5 % 4),
                        static_cast<int>(i % 8), weights[i / 7 % 4]});
    }
  int done = 0;
  for (size_t i = 0; i < shapes.size(); i += every, ++done) compare(shapes[i]);
  return done;
}

}  // namespace

int main(int argc, char** argv) {
  units = runnable_units();
  int done = cases(argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 1);
  for (const Kernels* k : units)
    std::cout << k->name << ": " << done << " cases of rows compared\n";
  if (failures) std::cout << failures << " differ\n";
  return failures ? 1 : 0;
}
