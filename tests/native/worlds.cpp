// Members in worlds within the block, by every unit, against the same kernels told row by row what
// the worlds showed: hostile worlds of odd sizes, with rows that are idle everywhere and values
// beyond every limit, some of which take the tiles that a block has opened. Units are compared with
// each other, too. Blocks with worlds run in threads of their own, as the engine's do.
//
// worlds [n]: every n-th case only, where time is short.

#include <cmath>
#include <iostream>
#include <memory>
#include <string>

#include "crediting.h"
#include "program.h"
#include "reference.h"
#include "stepper.h"
#include "trial_world.h"
#include "units.h"
#include "values.h"

using namespace eggroll;

namespace {

using Ints = std::vector<int32_t>;

struct Shape {
  const eggroll_world* world;
  bool wide, state;
  int stages, width, members, rows, mode, rank;  // mode: of Credit
  trial::Shared shared;
};

struct Case {
  std::unique_ptr<Program> program;
  Shape shape;
  std::vector<Bytes> weights;
  Bytes table, state;
  Ints starts, signs;  // signs [leaves, pairs, words of all rows]
  std::vector<uint64_t> keys;
  Crediting crediting;
  double by;
};

// What comes out of an update.
struct Result {
  Bytes state, credits;
  Ints values;
  std::vector<uint8_t> active;
  bool operator==(const Result&) const = default;
};

int failures = 0;

std::unique_ptr<Program> program_of(const Shape& s) {
  int in = s.world->inputs, out = s.world->outputs, w = s.width, offset = 0, leaf = 3;
  std::vector<StageSpec> stages;
  std::vector<LeafSpec> leaves = {{w, in}, {w, 0}, {out, w}};
  for (int i = 0; i < s.stages; ++i) {
    std::vector<OpSpec> ops;
    if (i == 0) {
      ops = {{"input", 2, {}, -1, 0, {}}, {"linear", 0, {2}, 0, 0, {}}, {"bias", 0, {0}, 1, 0, {}}};
    } else {
      leaves.emplace_back(w, w);
      ops = {{"linear", 4, {0}, leaf++, 0, {}}, {"relu", 0, {4}, -1, 0, {}}};
    }
    bool state = s.state && i != 1;
    if (state) ops.insert(ops.end(), {{"add", 1, {1, 0}, -1, 0, {}}, {"relu", 0, {1}, -1, 0, {}}});
    if (i + 1 == s.stages && s.wide) ops.push_back({"sums", 0, {0}, 2, 0, {0}});
    if (i + 1 == s.stages && !s.wide)
      ops.insert(ops.end(), {{"linear", 3, {0}, 2, 0, {}}, {"output", 0, {3}, -1, 0, {0}}});
    stages.push_back({ops, {w, w, in, out, w}, state ? offset : -1});
    offset += state ? w : 0;
  }
  return std::make_unique<Program>(stages, leaves, w, 2, offset, std::vector<std::vector<int>>{},
                                   std::vector<uint32_t>(16, 1), std::vector<uint64_t>(15, 1), in,
                                   0, std::vector<OutputSpec>{{out, s.wide}});
}

Case case_of(const Shape& s) {
  Case c{program_of(s), s, {}, {}, {}, {}, {}, {}, {}, 0};
  const Plan& plan = c.program->plan();
  int longest = 0;
  for (int i = 0; i < plan.leaf_count; ++i) {
    const Leaf& leaf = plan.leaves[i];
    int length = leaf.cols ? s.rank * (leaf.rows + leaf.cols) : 2 * leaf.rows;
    longest = std::max(longest, length);
    c.weights.push_back(fill(Fill::any, static_cast<size_t>(leaf.rows * std::max(leaf.cols, 1))));
    c.crediting.shifts.push_back(draw(0, 3));
    c.crediting.kinds.push_back(
        static_cast<int>(leaf.cols ? CreditKind::inputs : CreditKind::scalar));
    c.crediting.owners.push_back(i);
    c.crediting.discounts.push_back(draw(0, 15));
    for (int p = 0; p < s.members / 2; ++p) c.starts.push_back(draw(0, 99));
    for (int p = 0; p < s.members / 2 * ((s.rows + 31) / 32); ++p)
      c.signs.push_back(static_cast<int32_t>(chance()));
  }
  c.crediting.mode = s.mode, c.crediting.credit_shift = 2, c.crediting.unit_shift = 4;
  c.table = fill(Fill::any, static_cast<size_t>(longest + 99));
  c.state = fill(Fill::any, static_cast<size_t>(s.members * plan.state_size));
  for (int m = 0; m < s.members; ++m) c.keys.push_back(uint64_t{chance()} << 32 | chance());
  c.by = std::ldexp(static_cast<double>(draw(1, 999)), -6);
  return c;
}

Job job_of(const Kernels& k, const Case& c, const Packed& packed, Bytes& after) {
  Job job{};
  job.plan = c.program->plan(k);
  job.weights = packed.weights(), job.noise = c.table.data(), job.starts = c.starts.data();
  job.rank = c.shape.rank, job.shift = 5, job.block_tokens = 3;
  job.state_in = c.state.data();
  after.assign(c.state.size(), 0);
  job.state_out = after.data();
  job.members = c.shape.members;
  return job;
}

using Run = void (*)(const Kernels&, const Job&);

// Runs a job as it is credited; its credit.
Bytes credited(const Kernels& k, const Job& job, const Crediting& crediting, Run run) {
  CreditWork work(job, crediting);
  run(k, work.job);
  const int8_t* credits = work.credits.get();
  return Bytes(credits, credits + job.members / 2 * work.job.credit_size);
}

Result within(const Kernels& k, const Case& c) {
  const Shape& s = c.shape;
  Result r;
  r.values.assign(static_cast<size_t>(s.members * s.rows), -1);
  std::unique_ptr<bool[]> active(new bool[r.values.size()]);
  const Packed packed(*c.program, k, c.weights);
  Job job = job_of(k, c, packed, r.state);
  job.tokens_per_member = s.rows;
  job.signs = c.signs.data();
  job.world = s.world, job.shared = &s.shared, job.keys = c.keys.data();
  job.by = c.by, job.worth = r.values.data(), job.active = active.get();
  if (s.mode)
    r.credits = credited(k, job, c.crediting, run_blocks_at_once);
  else
    run_blocks_at_once(k, job);
  r.active.assign(active.get(), active.get() + r.values.size());
  return r;
}

// Arrays [outer, T, ..] cut to their first t rows.
template <typename T>
std::vector<T> cut(const std::vector<T>& from, int rows, int t, int size) {
  std::vector<T> out;
  for (size_t i = 0; i < from.size(); i += static_cast<size_t>(rows * size))
    out.insert(out.end(), from.begin() + static_cast<int64_t>(i),
               from.begin() + static_cast<int64_t>(i) + int64_t{t} * size);
  return out;
}

// What a caller has told so far, of whom worlds ask row by row.
struct Told {
  Bytes inputs;
  Ints tokens;
};

// The outputs of the first t rows of all members, by the engine's ordinary way.
std::vector<char> outputs(const Kernels& k, const Case& c, const Told& told, int t, Bytes& after) {
  const Shape& s = c.shape;
  Bytes inputs = cut(told.inputs, s.rows, t, s.world->inputs);
  Ints tokens = cut(told.tokens, s.rows, t, 1);
  Ints signs = cut(c.signs, (s.rows + 31) / 32, (t + 31) / 32, 1);
  const Packed packed(*c.program, k, c.weights);
  Job job = job_of(k, c, packed, after);
  job.tokens_per_member = t, job.tokens = job.targets = tokens.data(), job.inputs = inputs.data();
  job.signs = signs.data();
  if (s.mode) noise_of_nodes(c.crediting, job);
  std::vector<char> out(static_cast<size_t>(s.members * t * s.world->outputs * (s.wide ? 4 : 1)));
  void* to[] = {out.data()};
  job.outputs = to;
  run_blocks(k, job);
  return out;
}

Ints differences(const Result& r, const Case& c) {
  Ints out;
  size_t rows = static_cast<size_t>(c.shape.rows);
  for (size_t i = 0; i < r.values.size(); i += 2 * rows)
    for (size_t t = i; t < i + rows; ++t) {
      double d = r.active[t] ? double(r.values[t]) - double(r.values[t + rows]) : 0;
      d = std::nearbyint(d * c.by);
      out.push_back(static_cast<int32_t>(std::clamp(d, double(-kValue), double(kValue))));
    }
  return out;
}

Result told(const Kernels& k, const Case& c) {
  const Shape& s = c.shape;
  int n = s.world->inputs, size = s.world->outputs * (s.wide ? 4 : 1);
  size_t P = static_cast<size_t>(s.members), T = static_cast<size_t>(s.rows);
  Result r;
  r.values.assign(P * T, -1), r.active.assign(P * T, 0);
  Told all{Bytes(P * T * static_cast<size_t>(n)), Ints(P * T, 1)};
  WorldStepper worlds(s.world, &s.shared, c.keys.data(), s.members, 2);
  for (int t = 0; t < s.rows; ++t) {
    Bytes inputs(P * static_cast<size_t>(n), 99);
    std::vector<uint8_t> flags(P);
    std::vector<char> last;
    worlds.observe(t, inputs.data(), flags.data());
    for (size_t m = 0; m < P; ++m) {
      size_t at = m * T + static_cast<size_t>(t);
      std::copy_n(inputs.begin() + static_cast<int64_t>(m) * n, n,
                  all.inputs.begin() + static_cast<int64_t>(at) * n);
      all.tokens[at] = flags[m] != 2, r.active[at] = flags[m] != 0;
    }
    std::vector<char> out = outputs(k, c, all, t + 1, r.state);
    for (size_t m = 0; m < P; ++m) {
      auto row = out.begin() + static_cast<int64_t>(m * static_cast<size_t>(t + 1) + t) * size;
      last.insert(last.end(), row, row + size);
    }
    worlds.act(t, last.data(), size, flags.data());
  }
  worlds.value(s.rows, r.values.data());
  if (!s.mode) return r;
  Ints values = differences(r, c);
  Bytes after;
  const Packed packed(*c.program, k, c.weights);
  Job job = job_of(k, c, packed, after);
  job.tokens_per_member = s.rows, job.tokens = job.targets = all.tokens.data();
  job.inputs = all.inputs.data(), job.signs = c.signs.data(), job.values = values.data();
  r.credits = credited(k, job, c.crediting, run_blocks);
  return r;
}

// A world that uses tiles itself, and leaves the thread without any.
template <int inputs, int outputs, typename Value>
eggroll_world taking() {
  eggroll_world world = trial::world<inputs, outputs, Value>;
  world.observe = [](const void* shared, void* mine, int32_t row, int8_t* to) {
    take_tiles();
    return trial::observe<inputs>(shared, mine, row, to);
  };
  return world;
}

std::vector<Shape> shapes() {
  static const eggroll_world worlds[] = {trial::world<1, 1, int8_t>,   taking<3, 2, int8_t>(),
                                         trial::world<17, 9, int8_t>,  taking<64, 33, int8_t>(),
                                         trial::world<66, 16, int8_t>, trial::world<1, 1, int32_t>,
                                         taking<5, 17, int32_t>()};
  const trial::Shared shared[] = {{0, 0, 0}, {40, 30, 0}, {256, 0, 30}, {0, 256, 31}, {128, 9, 24}};
  std::vector<Shape> all;
  int i = 0;
  for (const eggroll_world& world : worlds)
    for (int mode : {0, 1, 2})
      for (const trial::Shared& s : shared) {
        int width = kSizes[static_cast<size_t>(3 * i) % kSizes.size()];
        all.push_back({&world, &world >= worlds + 5, i % 3 > 0, 1 + i % 4 % 3, width,
                       i % 5 ? 2 + 2 * (i % 3) : 34, i % 11 ? 3 + i % 4 : 35, mode,
                       mode ? 1 : 1 + i % 2, s});
        ++i;
      }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  size_t every = argc > 1 ? static_cast<size_t>(std::stoi(argv[1])) : 1;
  std::vector<const Kernels*> units = runnable_units();
  std::vector<Result> known;
  std::vector<Shape> all = shapes();
  for (const Kernels* k : units) {
    chance.seed(7);
    size_t count = 0;
    for (size_t i = 0; i < all.size(); i += every, ++count) {
      Case c = case_of(all[i]);
      Result inside = within(*k, c);
      if (k == units[0]) known.push_back(inside);
      bool same = inside == told(*k, c), alike = inside == known[count];
      if (same && alike) continue;
      ++failures;
      std::cout << "  " << k->name << " world " << i << " differs"
                << (same ? " from other units" : "") << "\n";
    }
    std::cout << k->name << ": " << count << " worlds\n";
  }
  return failures ? 1 : 0;
}
