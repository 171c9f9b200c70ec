// MLX primitives of the CPU engine: what gives scores and votes at once, and the job of all.
//
// Included by engine.cpp alone, which makes arrays of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "count.h"
#include "crediting.h"
#include "dispatch.h"
#include "machine.h"
#include "memory.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "packed.h"
#include "program.h"

namespace eggroll {

namespace mx = mlx::core;

namespace {

class CpuPrimitive : public mx::Primitive {
 public:
  CpuPrimitive(mx::Stream stream, std::shared_ptr<Program> program, int threads)
      : mx::Primitive(stream),
        kernels_(kernels()),
        program_(std::move(program)),
        threads_(threads) {}
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("the cpu engine's primitives run on CPU streams only");
  }

 protected:
  // Enqueues the work on the CPU stream. It runs on a thread of MLX, which nobody hears: it must
  // neither throw nor need memory.
  void launch(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs,
              std::function<void()> work) {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const mx::array& in : inputs) encoder.set_input_array(in);
    for (mx::array& out : outputs) encoder.set_output_array(out);
    encoder.dispatch(std::move(work));
  }

  const Kernels& kernels_;  // for which the weights are packed
  std::shared_ptr<Program> program_;
  int threads_;
};

void allocate(std::vector<mx::array>& outputs) {
  for (mx::array& out : outputs) out.set_data(allocated(out.nbytes()));
}

// What an evaluation gives beside the new state.
enum class Output { scores, logits, likelihoods, outputs };

// The arrays of an evaluation: five that there always are, and where the others stand, or -1.
struct Arrays {
  std::vector<mx::array> in;  // packed, table, tokens, targets, state
  int starts = -1, inputs = -1, features = -1, signs = -1, draws = -1, values = -1;

  int add(const mx::array& a) {
    in.push_back(a);
    return static_cast<int>(in.size()) - 1;
  }
};

template <typename T>
const T* data_of(const std::vector<mx::array>& in, int at) {
  return at < 0 ? nullptr : in[static_cast<size_t>(at)].data<T>();
}

struct Options {
  int threads, block_tokens, rank, shift;
};

Job job_of(const Kernels& k, const Program& program, const std::vector<mx::array>& in,
           const Arrays& where, const Options& options) {
  Job job{};
  job.plan = program.plan(k);
  job.weights = packed_weights(in[0].data<int8_t>());
  job.noise = in[1].data<int8_t>();
  job.tokens = in[2].data<int32_t>();
  job.targets = in[3].data<int32_t>();
  job.state_in = in[4].data<int8_t>();
  job.starts = data_of<int32_t>(in, where.starts);
  job.inputs = data_of<int8_t>(in, where.inputs);
  job.features = data_of<int32_t>(in, where.features);
  job.signs = data_of<int32_t>(in, where.signs);
  job.draws = data_of<uint32_t>(in, where.draws);
  job.values = data_of<int32_t>(in, where.values);
  job.rank = options.rank;
  job.shift = options.shift;
  job.members = in[2].shape(0);
  job.tokens_per_member = in[2].shape(1);
  job.block_tokens = options.block_tokens;
  return job;
}

mx::Shape shape_of(const Leaf& l) { return l.cols ? mx::Shape{l.rows, l.cols} : mx::Shape{l.rows}; }

// Evaluation and votes in one: credit is a matter of the pair alone.
class CreditPopulation : public CpuPrimitive {
 public:
  CreditPopulation(mx::Stream stream, std::shared_ptr<Program> program, const Arrays& arrays,
                   const Options& options, const Crediting& crediting)
      : CpuPrimitive(stream, std::move(program), options.threads),
        where_(arrays),
        options_(options),
        crediting_(crediting) {
    where_.in.clear();
  }

  const char* name() const override { return "CreditPopulation"; }

  void eval_cpu(const std::vector<mx::array>& in, std::vector<mx::array>& out) override {
    allocate(out);
    Job job = job_of(kernels_, *program_, in, where_, options_);
    job.state_out = out[0].data<int8_t>();
    job.scores = out[1].data<int16_t>();
    if (!job.plan.scored) std::memset(job.scores, 0, out[1].nbytes());
    auto work = std::make_shared<CreditWork>(job, crediting_);
    const Kernels& k = kernels_;
    int64_t blocks = (work->job.members + kLanes - 1) / kLanes;
    size_t head = static_cast<size_t>(work->readout) * sizeof(int32_t);
    auto pool = std::make_shared<ScratchPool>(k.block_bytes(work->job), blocks, threads_);
    auto heads = std::make_shared<ScratchPool>(head, blocks, threads_);
    std::vector<VoteJob> votes;
    std::vector<int32_t*> z;
    int32_t* readout = nullptr;
    for (int i = 0; i < work->job.plan.leaf_count; ++i) {
      mx::array& leaf = out[static_cast<size_t>(i) + 2];
      std::memset(leaf.data<int32_t>(), 0, leaf.nbytes());
      if (work->counted(i)) votes.push_back(work->vote(i)), z.push_back(leaf.data<int32_t>());
      if (work->kinds[static_cast<size_t>(i)] == CreditKind::readout)
        readout = leaf.data<int32_t>();
    }
    Count count(k, votes, z, work->job.members / 2, threads_);
    launch(in, out,
           [&k, work, blocks, pool, heads, readout, count, threads = threads_, keep = program_] {
             heads->clear();
             parallel_for(blocks, threads, [&](int64_t i, int thread) {
               Job own = work->job;
               own.readout = readout ? static_cast<int32_t*>(heads->of(thread)) : nullptr;
               k.block(own, i, pool->of(thread));
             });
             for (int t = 0; readout && t < heads->size(); ++t)
               Count::add(readout, static_cast<const int32_t*>(heads->of(t)), work->readout);
             count.run();
           });
  }

 private:
  Arrays where_;
  Options options_;
  Crediting crediting_;
};

}  // namespace

}  // namespace eggroll
