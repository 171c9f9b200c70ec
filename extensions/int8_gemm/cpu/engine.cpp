#include "engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>

#include "arguments.h"
#include "count.h"
#include "dispatch.h"
#include "learning.h"
#include "machine.h"
#include "mlx/ops.h"
#include "stepper.h"

namespace eggroll {

double peak(int threads) {
  using Clock = std::chrono::steady_clock;
  check_threads(threads);
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

Packed::Packed(std::shared_ptr<const Program> program, const std::vector<mx::array>& leaves)
    : program_(std::move(program)),
      kernels_(&kernels()),
      memory_(room_for_weights(static_cast<size_t>(program_->packed_bytes(*kernels_)))) {
  const Plan plan = program_->plan(*kernels_);
  require(static_cast<int>(leaves.size()) == plan.leaf_count, "pack: one array per leaf is needed");
  leaves_.assign(plan.leaves, plan.leaves + plan.leaf_count);
  int8_t* to = at_cache_line(memory_);
  int64_t end = program_->packed_bytes(*kernels_);
  for (int i = plan.leaf_count - 1; i >= 0; --i) {
    Leaf& leaf = leaves_[static_cast<size_t>(i)];
    const int64_t bytes = end - leaf.offset;
    end = leaf.offset;
    require(leaves[static_cast<size_t>(i)].shape() == shape_of(leaf),
            "pack: a leaf has the wrong shape");
    const mx::array given = ready(leaves[static_cast<size_t>(i)], mx::int8, "a leaf");
    const int8_t* from = given.data<int8_t>();
    const bool fills = given.nbytes() == static_cast<size_t>(bytes);  // no less than its place has
    if (bytes >= kInPlace && fills && program_->lies_packed(i) && on_cache_line(from)) {
      program_->check_weights(i, from);
      given_.push_back(given);
      leaf.offset = reinterpret_cast<intptr_t>(from) - reinterpret_cast<intptr_t>(to);
    } else {
      std::memset(to + leaf.offset, 0, static_cast<size_t>(bytes));
      program_->pack(*kernels_, i, from, to);
    }
  }
  weights_ = to;
}

void Packed::place(const Program& program, const Kernels& k, Job& job) const {
  require(&program == program_.get() && &k == kernels_,
          std::string("The weights are not packed for this program and ") + k.name +
              ": pack them again after a change of EGGROLL_ISA.");
  job.plan = program.plan(), job.plan.leaves = leaves_.data(), job.weights = weights_;
}

namespace {

void run_blocks(const Job& job, int threads) {
  const Kernels& k = kernels();
  int64_t blocks = (job.members + kLanes - 1) / kLanes;
  ScratchPool pool(k.block_bytes(job), blocks, threads);
  parallel_for(blocks, threads, [&](int64_t i, int thread) { k.block(job, i, pool.of(thread)); });
}

// The same, then the votes of every leaf, which are added to `out`. Threads have readouts of their
// own.
void run_credited(const Job& job, const Crediting& crediting, int threads,
                  std::vector<mx::array>& out) {
  const Kernels& k = kernels();
  CreditWork work(job, crediting);
  std::vector<VoteJob> votes;
  std::vector<int32_t*> z;
  int32_t* readout = nullptr;
  for (int i = 0; i < job.plan.leaf_count; ++i) {
    out.push_back(made(shape_of(job.plan.leaves[i]), mx::int32));
    int32_t* leaf = out.back().data<int32_t>();
    if (work.counted(i))
      votes.push_back(work.vote(i)), z.push_back(leaf);
    else
      std::memset(leaf, 0, out.back().nbytes());
    if (work.kinds[static_cast<size_t>(i)] == CreditKind::readout) readout = leaf;
  }
  const int64_t blocks = (job.members + kLanes - 1) / kLanes;
  const ScratchPool pool(k.block_bytes(work.job), blocks, threads);
  const ScratchPool heads(static_cast<size_t>(work.readout) * sizeof(int32_t), blocks, threads);
  heads.clear();
  parallel_for(blocks, threads, [&](int64_t i, int thread) {
    Job own = work.job;
    own.readout = readout ? static_cast<int32_t*>(heads.of(thread)) : nullptr;
    k.block(own, i, pool.of(thread));
  });
  for (int t = 0; readout && t < heads.size(); ++t)
    add_votes(readout, static_cast<const int32_t*>(heads.of(t)), work.readout);
  count_votes(k, votes, z, job.members / 2, threads);
}

// Done when it returns: a primitive would go through MLX's thread, which takes longer than the
// votes of a small population.
std::vector<mx::array> run(const Program& program, const Arrays& arrays, const Options& options,
                           Output output,
                           const std::optional<Crediting>& crediting = std::nullopt) {
  const Plan& plan = program.plan();
  int members = arrays.state().shape(0), count = arrays.tokens().shape(1);
  std::vector<mx::array> out{made({members, plan.state_size}, mx::int8)};
  Job job = job_of(kernels(), program, arrays, options);
  job.state_out = out[0].data<int8_t>();
  auto give = [&](mx::Shape shape, mx::Dtype dtype) {
    check_size(shape);
    out.push_back(made(std::move(shape), dtype));
    return out.back().data<void>();
  };
  auto each = [&](mx::Dtype dtype) { return give({members, count}, dtype); };
  std::vector<void*> given;
  if (output == Output::scores) job.scores = static_cast<int16_t*>(each(mx::int16));
  if (output == Output::logits)
    job.logits = static_cast<int8_t*>(give({members, count, plan.vocabulary}, mx::int8));
  if (output == Output::likelihoods)
    job.totals = static_cast<uint64_t*>(each(mx::uint64)),
    job.hits = static_cast<int8_t*>(each(mx::int8));
  for (int i = 0; output == Output::outputs && i < plan.output_count; ++i)
    given.push_back(
        give({members, count, plan.outputs[i].size}, plan.outputs[i].wide ? mx::int32 : mx::int8));
  if (output == Output::outputs) job.outputs = given.data();
  if (crediting) noise_of_nodes(*crediting, job);
  run_blocks(job, options.threads);
  return out;
}

std::vector<mx::array> run_unperturbed(std::shared_ptr<Program> program, const Packed& packed,
                                       const mx::array& tokens, const mx::array& targets,
                                       const mx::array& state, const Rows& rows, int threads,
                                       int block_tokens, Output output) {
  check_scored(program->plan());
  const Options options{threads, block_tokens, 1, 0};
  Arrays arrays = arrays_of(*program, packed, no_noise(), tokens, targets, state, rows, options);
  return run(*program, arrays, options, output);
}

}  // namespace

std::vector<mx::array> evaluate(std::shared_ptr<Program> program, const Packed& packed,
                                const Noise& noise, const mx::array& tokens,
                                const mx::array& targets, const mx::array& state, const Rows& rows,
                                int threads, int block_tokens) {
  check_scored(program->plan());
  const Options options{threads, block_tokens, noise.rank, noise.shift};
  Arrays arrays = arrays_of(*program, packed, noise, tokens, targets, state, rows, options);
  return run(*program, arrays, options, Output::scores);
}

std::vector<mx::array> outputs(std::shared_ptr<Program> program, const Packed& packed,
                               const Noise& noise, const mx::array& tokens, const mx::array& state,
                               const Rows& rows, const std::optional<mx::array>& signs,
                               const std::optional<Crediting>& crediting, int threads,
                               int block_tokens) {
  const Options options{threads, block_tokens, noise.rank, noise.shift};
  const Plan& plan = program->plan();
  Arrays arrays = arrays_of(*program, packed, noise, tokens, tokens, state, rows, options);
  if (crediting) {
    require(noise.starts && noise.rank == 1 && signs,
            "outputs with crediting: noise of rank 1 and signs are needed");
    check(plan, *crediting);
    add_signs(plan, *signs, arrays);
  }
  return run(*program, arrays, options, Output::outputs, crediting);
}

std::vector<mx::array> logits(std::shared_ptr<Program> program, const Packed& packed,
                              const mx::array& tokens, const mx::array& state, const Rows& rows,
                              int threads, int block_tokens) {
  return run_unperturbed(std::move(program), packed, tokens, tokens, state, rows, threads,
                         block_tokens, Output::logits);
}

std::vector<mx::array> likelihoods(std::shared_ptr<Program> program, const Packed& packed,
                                   const mx::array& tokens, const mx::array& targets,
                                   const mx::array& state, const Rows& rows, int threads,
                                   int block_tokens) {
  return run_unperturbed(std::move(program), packed, tokens, targets, state, rows, threads,
                         block_tokens, Output::likelihoods);
}

std::vector<mx::array> credit(std::shared_ptr<Program> program, const Packed& packed,
                              const Noise& noise, const mx::array& signs, const mx::array& draws,
                              const Crediting& crediting, const mx::array& tokens,
                              const mx::array& targets, const mx::array& state, const Rows& rows,
                              const std::optional<mx::array>& values, int threads,
                              int block_tokens) {
  const Plan& plan = program->plan();
  const Options options{threads, block_tokens, 1, noise.shift};
  require(noise.starts && noise.rank == 1, "credit: noise of rank 1 is needed");
  check(plan, crediting);
  Arrays arrays = arrays_of(*program, packed, noise, tokens, targets, state, rows, options);
  int members = state.shape(0), count = tokens.shape(1);
  require(!crediting.group || (plan.scored && !values && members % crediting.group == 0),
          "credit: groups need a score, and whole groups of members");
  add_signs(plan, signs, arrays);
  require(draws.shape() == mx::Shape{members / 2, count}, "draws: [pairs, T] is needed");
  arrays.draws = arrays.add(ready(draws, mx::uint32, "draws"));
  require(values || plan.scored,
          "The program has no score: credit needs values, int32 [pairs, T], what members 2p "
          "earned at each token less what members 2p + 1 did.");
  if (values) {
    require(values->shape() == mx::Shape{members / 2, count}, "values: [pairs, T] is needed");
    arrays.values = arrays.add(ready(*values, mx::int32, "values"));
    check_range(arrays.in.back(), -kValue, kValue, "values");
  }
  std::vector<mx::array> out{made({members, plan.state_size}, mx::int8),
                             made({members, count}, mx::int16)};
  Job job = job_of(kernels(), *program, arrays, options);
  job.state_out = out[0].data<int8_t>();
  job.scores = out[1].data<int16_t>();
  if (!plan.scored) std::memset(job.scores, 0, out[1].nbytes());
  run_credited(job, crediting, threads, out);
  return out;
}

std::vector<mx::array> play(std::shared_ptr<Program> program, const Packed& packed,
                            const Noise& noise, const mx::array& state, const Play& play,
                            const std::optional<mx::array>& signs,
                            const std::optional<Crediting>& crediting, int threads) {
  Job job{};
  const Kernels& k = kernels();
  packed.place(*program, k, job);
  job.world = check_world(reinterpret_cast<const eggroll_world*>(play.world));
  check_fits(job.plan, job.world);
  check_threads(threads);
  require(std::isfinite(play.by), "play: the factor from values to credit must be finite");
  require(play.rows >= 1 && play.keys.ndim() == 1 && play.keys.size() && play.keys.size() % 2 == 0,
          "play: rows, and keys for an even number of members, are needed");
  require(noise.starts && noise.shift >= 0 && noise.shift < 32, "play: noise is needed");
  int members = play.keys.shape(0);
  check_size({members, play.rows});
  const mx::array in[] = {
      ready(noise.table, mx::int8, "table"), ready(*noise.starts, mx::int32, "starts"),
      ready_state(state, members, job.plan), ready(play.keys, mx::uint64, "keys"),
      ready(signs.value_or(*noise.starts), mx::int32, "signs")};
  check_starts(job.plan, in[1], in[0], noise.rank, members / 2);
  std::vector<mx::array> out{made(state.shape(), mx::int8), made({members, play.rows}, mx::int32),
                             made({members, play.rows}, mx::bool_)};
  job.noise = in[0].data<int8_t>();
  job.starts = in[1].data<int32_t>(), job.state_in = in[2].data<int8_t>();
  job.keys = in[3].data<uint64_t>(), job.shared = reinterpret_cast<const void*>(play.shared);
  job.rank = noise.rank, job.shift = noise.shift, job.block_tokens = 1;
  job.members = members, job.tokens_per_member = play.rows, job.by = play.by;
  job.state_out = out[0].data<int8_t>(), job.worth = out[1].data<int32_t>();
  job.active = out[2].data<bool>();
  if (!crediting) {
    run_blocks(job, threads);
    return out;
  }
  const mx::Shape bits{job.plan.leaf_count, members / 2, (play.rows + 31) / 32};
  require(noise.rank == 1 && (signs ? signs->shape() == bits : crediting->mode == 1),
          "play: noise of rank 1 and, where it is of nodes, signs [leaves, pairs, ceil(T / 32)]");
  check(job.plan, *crediting);
  require(!crediting->group, "play: members of a world are compared in pairs");
  job.signs = in[4].data<int32_t>();
  run_credited(job, *crediting, threads, out);
  return out;
}

std::vector<mx::array> learn(std::shared_ptr<Program> program, const Packed& packed,
                             const mx::array& tokens, const mx::array& targets,
                             const mx::array& state, const Rows& rows,
                             const std::optional<mx::array>& index, const mx::array& words,
                             const std::vector<int>& scales,
                             const std::vector<std::optional<mx::array>>& back,
                             const std::optional<mx::array>& errors,
                             const std::optional<Targets>& of_outputs, int threads) {
  const Plan& plan = program->plan();
  require(!errors || !of_outputs, "errors are given, or made of targets");
  if (!errors && !of_outputs) check_scored(plan);
  const Options options{threads, 1, 1, 0};
  Arrays arrays =
      arrays_of(*program, packed, no_noise(), tokens, targets, state, rows, options, index);
  int members = state.shape(0), count = tokens.shape(1);
  require(words.shape() == mx::Shape{members, count}, "words: [P, T] is needed");
  arrays.draws = arrays.add(ready(words, mx::uint32, "words"));
  const std::vector<int> at = matrices_of(plan, scales, back, arrays);
  const int errors_at = errors ? add_errors(plan, *errors, arrays) : -1;
  std::vector<mx::array> out{made({members, plan.state_size}, mx::int8),
                             made({members, count}, mx::int16), made({plan.leaf_count}, mx::int64)};
  LearnWork work;
  Job& job = work.job.job;
  job = job_of(kernels(), *program, arrays, options);
  job.draws = nullptr;
  job.state_out = out[0].data<int8_t>();
  job.scores = out[1].data<int16_t>();
  if (!plan.scored) std::memset(job.scores, 0, out[1].nbytes());
  work.job.errors = arrays.data<int8_t>(errors_at);
  work.job.errors_size = errors_size(plan);
  RatingWork rating;
  if (of_outputs) rating.prepare(plan, *of_outputs, work.job, out);
  work.job.words = arrays.data<uint32_t>(arrays.draws);
  work.job.index = arrays.data<int32_t>(arrays.index);
  work.job.scales = scales.data();
  work.sizes = out[2].data<int64_t>();
  for (int i = 0; i < plan.leaf_count; ++i) {
    work.matrices.push_back(arrays.data<int8_t>(at[static_cast<size_t>(i)]));
    out.push_back(made(shape_of(plan.leaves[i]), mx::int32));
    work.z.push_back(out.back().data<int32_t>());
  }
  work.prepare(kernels(), threads);
  work.run();
  return out;
}

std::vector<mx::array> votes(std::shared_ptr<Program> program, const mx::array& fitness,
                             const mx::array& table, const mx::array& starts, int rank, bool signs,
                             int threads) {
  const Plan& plan = program->plan();
  check_threads(threads);
  require(fitness.ndim() == 1, "fitness: [pairs] is needed");
  std::vector<mx::array> in{ready(fitness, mx::int8, "fitness"), ready(table, mx::int8, "table"),
                            ready(starts, mx::int32, "starts")};
  check_starts(plan, in[2], in[1], rank, static_cast<int64_t>(in[0].size()));
  const int8_t* f = in[0].data<int8_t>();
  bool ok = true;
  for (size_t i = 0; i < in[0].size(); ++i) ok &= f[i] >= -1 && f[i] <= 1;
  require(ok, "fitness must be -1, 0 or 1");
  const int64_t pairs = static_cast<int64_t>(in[0].size());
  std::vector<mx::array> out;
  std::vector<VoteJob> jobs;
  std::vector<int32_t*> z;
  for (int i = 0; i < plan.leaf_count; ++i) {
    out.push_back(made(shape_of(plan.leaves[i]), mx::int32));
    z.push_back(out.back().data<int32_t>());
    VoteJob job{};
    job.leaf = plan.leaves[i];
    job.noise = in[1].data<int8_t>();
    job.starts = in[2].data<int32_t>() + i * pairs;
    job.fitness = f;
    job.rank = rank;
    job.signs = signs;
    jobs.push_back(job);
  }
  count_votes(kernels(), jobs, z, pairs, threads);
  return out;
}

mx::array pair_signs(const mx::array& scores) {
  require(scores.ndim() == 2 && scores.shape(0) % 2 == 0, "scores: [P, T] of pairs is needed");
  const mx::array in = ready(scores, mx::int16, "scores");
  const int pairs = in.shape(0) / 2, count = in.shape(1);
  mx::array out = made({pairs}, mx::int8);
  const int16_t* plus = in.data<int16_t>();
  int8_t* sign = out.data<int8_t>();
  for (int p = 0; p < pairs; ++p, plus += 2 * static_cast<int64_t>(count)) {
    const int16_t* minus = plus + count;
    int64_t sum = 0;
    for (int t = 0; t < count; ++t) sum += plus[t] - minus[t];
    sign[p] = static_cast<int8_t>((sum > 0) - (sum < 0));
  }
  return out;
}

std::tuple<int64_t, std::vector<uint64_t>, std::vector<uint64_t>> rated_sums(
    const mx::array& errors, const mx::array& lost) {
  require(lost.ndim() && lost.shape(-1), "lost: uint64 [.., outputs] is needed");
  const mx::array e = ready(errors, mx::int8, "errors"), by = ready(lost, mx::uint64, "lost");
  const int8_t* __restrict at = e.data<int8_t>();
  int64_t size = 0;
  for (size_t i = 0; i < e.size(); ++i) size += at[i] < 0 ? -at[i] : at[i];
  const size_t outputs = static_cast<size_t>(by.shape(-1));
  std::vector<uint64_t> high(outputs), low(outputs);
  const uint64_t* row = by.data<uint64_t>();
  for (size_t i = 0; i < by.size(); i += outputs, row += outputs)
    for (size_t o = 0; o < outputs; ++o) high[o] += row[o] >> 32, low[o] += row[o] & 0xFFFFFFFF;
  return {size, std::move(high), std::move(low)};
}

mx::array rounded(const mx::array& fine) {
  const mx::array in = ready(fine, mx::int32, "fine");
  mx::array out = made(in.shape(), mx::int8);
  const int32_t* __restrict from = in.data<int32_t>();
  int8_t* __restrict to = out.data<int8_t>();
  const size_t count = in.size();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t v = static_cast<uint32_t>(from[i]) + 0x8000;
    to[i] = static_cast<int8_t>(static_cast<int32_t>(v) >> 16);
  }
  return out;
}

mx::array draws(const std::vector<uint64_t>& streams, const std::vector<uint64_t>& rooms,
                uint64_t first, const std::vector<int>& shape, int threads, bool is_unsigned) {
  constexpr int64_t kFew = 1 << 17;   // numbers that take 20 to 130 microseconds
  constexpr int64_t kPart = 1 << 16;  // of a stream that a thread draws at a time
  require(streams.size() == rooms.size(), "draws: one room per stream is needed");
  for (uint64_t room : rooms) require(room <= uint64_t{1} << 32, "draws: rooms are at most 2^32");
  int64_t size = 1;
  for (int axis : shape) {
    require(axis >= 0, "draws: a shape has no negative numbers");
    require(!__builtin_mul_overflow(size, int64_t{axis}, &size), "draws: the shape is too large");
  }
  require(size < int64_t{1} << 31, "draws: an array holds fewer than 2^31 numbers");
  check_threads(threads);
  int64_t count = streams.empty() ? 0 : size / static_cast<int64_t>(streams.size());
  require(count * static_cast<int64_t>(streams.size()) == size,
          "draws: the shape is not shared by the streams");
  mx::allocator::Data data = allocated(static_cast<size_t>(size) * sizeof(int32_t));
  auto* out = static_cast<int32_t*>(data.buffer().raw_ptr());
  const auto draw = kernels().draw;
  // A stream may be long: it is drawn in parts.
  int64_t parts = (count + kPart - 1) / kPart, items = static_cast<int64_t>(streams.size()) * parts;
  parallel_for(items, size < kFew ? 1 : threads, [&](int64_t item, int) {
    int64_t part = item % parts * kPart, length = std::min(kPart, count - part);
    auto i = static_cast<size_t>(item / parts);
    int32_t* to = out + item / parts * count + part;
    if (rooms[i])
      draw(streams[i], first + static_cast<uint64_t>(part), length, rooms[i], to);
    else
      std::fill_n(to, length, 0);
  });
  return mx::array(std::move(data), mx::Shape(shape.begin(), shape.end()),
                   is_unsigned ? mx::uint32 : mx::int32);
}

}  // namespace eggroll
