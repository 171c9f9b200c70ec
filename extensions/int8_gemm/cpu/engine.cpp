#include "engine.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "dispatch.h"
#include "machine.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "primitives.h"

namespace eggroll {

namespace {

const mx::Device kCpu(mx::Device::cpu);

mx::array ready(const mx::array& a, mx::Dtype dtype, const char* what) {
  require(a.dtype() == dtype, std::string(what) + ": wrong dtype");
  mx::array c = a;
  c.eval();
  if (c.flags().row_contiguous) return c;
  c = mx::contiguous(c, false, kCpu);
  c.eval();
  return c;
}

void check_range(const mx::array& a, int32_t low, int32_t high, const char* what) {
  const int32_t* v = a.data<int32_t>();
  bool ok = true;
  for (size_t i = 0; i < a.size(); ++i) ok &= v[i] >= low && v[i] <= high;
  require(ok,
          std::string(what) + " must be in " + std::to_string(low) + ".." + std::to_string(high));
}

// Every slice must lie in the table.
void check_starts(const Plan& plan, const mx::array& starts, const mx::array& table, int rank,
                  int64_t pairs) {
  require(rank >= 1, "rank must be 1 or more");
  require(starts.ndim() == 2 && starts.shape(0) == plan.leaf_count && starts.shape(1) == pairs,
          "starts: [leaves, pairs] is needed");
  const int32_t* v = starts.data<int32_t>();
  for (int i = 0; i < plan.leaf_count; ++i) {
    const Leaf& leaf = plan.leaves[i];
    int64_t length = leaf.cols ? static_cast<int64_t>(rank) * (leaf.rows + leaf.cols)
                               : 2 * static_cast<int64_t>(leaf.rows);
    int64_t last = static_cast<int64_t>(table.size()) - length;
    bool ok = true;
    for (int64_t p = 0; p < pairs; ++p, ++v) ok &= *v >= 0 && *v <= last;
    require(ok, "a noise slice reaches beyond the table");
  }
}

}  // namespace

double peak(int threads) {
  using Clock = std::chrono::steady_clock;
  const Kernels& k = kernels();  // here, as it may throw
  auto run = [&](int64_t rounds) {
    int count = threads > 0 ? threads : default_threads();
    std::atomic<int64_t> done{0};
    Clock::time_point start = Clock::now();
    parallel_for(count, count, [&](int64_t, int) { done += k.peak(rounds); });
    double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return std::pair<double, double>(static_cast<double>(done), seconds);
  };
  // Long enough for the threads' start to vanish, short enough to be repeated.
  int64_t rounds = 1000;
  while (run(rounds).second < 0.01) rounds *= 2;
  auto [macs, seconds] = run(8 * rounds);
  return macs / seconds;
}

mx::array pack(const Program& program, const std::vector<mx::array>& leaves) {
  const Plan& plan = program.plan();
  require(static_cast<int>(leaves.size()) == plan.leaf_count, "pack: one array per leaf is needed");
  require(program.packed_bytes() < int64_t{1} << 31, "pack: the network has too many weights");
  mx::array out(mx::allocator::malloc(static_cast<size_t>(program.packed_bytes())),
                {static_cast<int>(program.packed_bytes())}, mx::int8);
  std::memset(out.data<int8_t>(), 0, out.nbytes());
  for (int i = 0; i < plan.leaf_count; ++i) {
    const Leaf& leaf = plan.leaves[i];
    const mx::array& given = leaves[static_cast<size_t>(i)];
    require(given.shape() == shape_of(leaf), "pack: a leaf has the wrong shape");
    program.pack(i, ready(given, mx::int8, "a leaf").data<int8_t>(), out.data<int8_t>());
  }
  return out;
}

namespace {

std::vector<mx::array> run(std::shared_ptr<Program> program, const mx::array& packed,
                           const mx::array& table, const std::optional<mx::array>& starts, int rank,
                           int shift, const mx::array& tokens, const mx::array& targets,
                           const mx::array& state, int threads, int block_tokens, Output output) {
  const Plan& plan = program->plan();
  require(tokens.ndim() == 2 && tokens.shape() == targets.shape(), "tokens, targets: [P, T]");
  int members = tokens.shape(0), count = tokens.shape(1);
  require(state.shape() == mx::Shape{members, plan.state_size}, "state: [P, state_size] is needed");
  require(shift >= 0 && shift < 32, "shift must be in 0..31");
  require(block_tokens >= 1, "block_tokens must be 1 or more");
  std::vector<mx::array> in{ready(packed, mx::int8, "packed"), ready(table, mx::int8, "table"),
                            ready(tokens, mx::int32, "tokens"),
                            ready(targets, mx::int32, "targets"), ready(state, mx::int8, "state")};
  check_range(in[2], 0, plan.vocabulary - 1, "tokens");
  check_range(in[3], 0, plan.vocabulary - 1, "targets");
  if (starts) {
    require(members % 2 == 0, "a population is made of pairs: P must be even");
    in.push_back(ready(*starts, mx::int32, "starts"));
    check_starts(plan, in[5], in[1], rank, members / 2);
  }
  kernels();
  std::vector<mx::Shape> shapes{{members, count}, {members, plan.state_size}};
  std::vector<mx::Dtype> dtypes{mx::int16, mx::int8};
  if (output == Output::logits) shapes[0].push_back(plan.vocabulary), dtypes[0] = mx::int8;
  if (output == Output::likelihoods) {
    shapes.push_back({members, count});
    dtypes = {mx::uint64, mx::int8, mx::int8};
  }
  auto primitive =
      std::make_shared<EvaluatePopulation>(mx::default_stream(kCpu), std::move(program), threads,
                                           block_tokens, rank, shift, starts.has_value(), output);
  return mx::array::make_arrays(shapes, dtypes, primitive, in);
}

std::vector<mx::array> run_unperturbed(std::shared_ptr<Program> program, const mx::array& packed,
                                       const mx::array& tokens, const mx::array& targets,
                                       const mx::array& state, int threads, int block_tokens,
                                       Output output) {
  const mx::array no_table = mx::zeros({1}, mx::int8, kCpu);
  return run(std::move(program), packed, no_table, std::nullopt, 1, 0, tokens, targets, state,
             threads, block_tokens, output);
}

}  // namespace

std::vector<mx::array> evaluate(std::shared_ptr<Program> program, const mx::array& packed,
                                const mx::array& table, const std::optional<mx::array>& starts,
                                int rank, int shift, const mx::array& tokens,
                                const mx::array& targets, const mx::array& state, int threads,
                                int block_tokens) {
  return run(std::move(program), packed, table, starts, rank, shift, tokens, targets, state,
             threads, block_tokens, Output::scores);
}

std::vector<mx::array> logits(std::shared_ptr<Program> program, const mx::array& packed,
                              const mx::array& tokens, const mx::array& state, int threads,
                              int block_tokens) {
  return run_unperturbed(std::move(program), packed, tokens, tokens, state, threads, block_tokens,
                         Output::logits);
}

std::vector<mx::array> likelihoods(std::shared_ptr<Program> program, const mx::array& packed,
                                   const mx::array& tokens, const mx::array& targets,
                                   const mx::array& state, int threads, int block_tokens) {
  return run_unperturbed(std::move(program), packed, tokens, targets, state, threads, block_tokens,
                         Output::likelihoods);
}

std::vector<mx::array> credit(std::shared_ptr<Program> program, const mx::array& packed,
                              const mx::array& table, const mx::array& starts, int shift,
                              const mx::array& signs, const mx::array& draws,
                              const Crediting& crediting, const mx::array& tokens,
                              const mx::array& targets, const mx::array& state, int threads,
                              int block_tokens) {
  const Plan& plan = program->plan();
  require(tokens.ndim() == 2 && tokens.shape() == targets.shape(), "tokens, targets: [P, T]");
  int members = tokens.shape(0), count = tokens.shape(1);
  require(members % 2 == 0, "a population is made of pairs: P must be even");
  require(state.shape() == mx::Shape{members, plan.state_size}, "state: [P, state_size] is needed");
  require(shift >= 0 && shift < 32 && block_tokens >= 1,
          "shift must be in 0..31, block_tokens 1 or more");
  check(plan, crediting);
  std::vector<mx::array> in{
      ready(packed, mx::int8, "packed"),  ready(table, mx::int8, "table"),
      ready(tokens, mx::int32, "tokens"), ready(targets, mx::int32, "targets"),
      ready(state, mx::int8, "state"),    ready(starts, mx::int32, "starts"),
      ready(signs, mx::int32, "signs"),   ready(draws, mx::uint32, "draws")};
  check_range(in[2], 0, plan.vocabulary - 1, "tokens");
  check_range(in[3], 0, plan.vocabulary - 1, "targets");
  check_starts(plan, in[5], in[1], 1, members / 2);
  require(in[6].shape() == mx::Shape{plan.leaf_count, members / 2, (count + 31) / 32},
          "signs: [leaves, pairs, ceil(T / 32)] is needed");
  require(in[7].shape() == mx::Shape{members / 2, count}, "draws: [pairs, T] is needed");
  kernels();
  std::vector<mx::Shape> shapes{{members, count}, {members, plan.state_size}};
  std::vector<mx::Dtype> dtypes{mx::int16, mx::int8};
  for (int i = 0; i < plan.leaf_count; ++i) {
    shapes.push_back(shape_of(plan.leaves[i]));
    dtypes.push_back(mx::int32);
  }
  auto primitive = std::make_shared<CreditPopulation>(mx::default_stream(kCpu), std::move(program),
                                                      threads, block_tokens, shift, crediting);
  return mx::array::make_arrays(shapes, dtypes, primitive, in);
}

std::vector<mx::array> votes(std::shared_ptr<Program> program, const mx::array& fitness,
                             const mx::array& table, const mx::array& starts, int rank, bool signs,
                             int threads) {
  const Plan& plan = program->plan();
  std::vector<mx::array> in{ready(fitness, mx::int8, "fitness"), ready(table, mx::int8, "table"),
                            ready(starts, mx::int32, "starts")};
  check_starts(plan, in[2], in[1], rank, static_cast<int64_t>(in[0].size()));
  const int8_t* f = in[0].data<int8_t>();
  bool ok = true;
  for (size_t i = 0; i < in[0].size(); ++i) ok &= f[i] >= -1 && f[i] <= 1;
  require(ok, "fitness must be -1, 0 or 1");
  kernels();
  std::vector<mx::Shape> shapes;
  for (int i = 0; i < plan.leaf_count; ++i) shapes.push_back(shape_of(plan.leaves[i]));
  std::vector<mx::Dtype> dtypes(shapes.size(), mx::int32);
  auto primitive = std::make_shared<CountVotes>(mx::default_stream(kCpu), std::move(program),
                                                threads, rank, signs);
  return mx::array::make_arrays(shapes, dtypes, primitive, in);
}

}  // namespace eggroll
