// Replays recorded cases on every instruction set this machine has, without MLX or Python.
//
// A case (written by cases.py) is a program, its first weights, noise, some updates' inputs, and
// what must come out: scores, states and votes of the first update, and the last weights. So it
// covers evaluation, votes, packing and a small training run, wherever the kernels compile. After
// these come single updates with token credit: scores, states and votes must come out.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "crediting.h"
#include "program.h"
#include "units.h"

using namespace eggroll;

namespace {

class Reader {
 public:
  explicit Reader(const char* path) : in_(path, std::ios::binary) {}
  template <typename T>
  std::vector<T> array() {
    int64_t count = 0;
    in_.read(reinterpret_cast<char*>(&count), sizeof count);
    std::vector<T> out(static_cast<size_t>(count));
    in_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(count * sizeof(T)));
    if (!in_) throw std::runtime_error("the case file ends early");
    return out;
  }
  int number() { return array<int32_t>().at(0); }

 private:
  std::ifstream in_;
};

struct Update {
  std::vector<int32_t> starts, tokens, targets;
};

struct Case {
  std::unique_ptr<Program> program;
  int rank, shift, members, tokens, threshold_matrix, threshold_vector;
  std::vector<int8_t> table, state, state_after;
  std::vector<std::vector<int8_t>> weights, last_weights;
  std::vector<Update> updates;
  std::vector<int16_t> scores;
  std::vector<std::vector<int32_t>> votes;
};

StageSpec read_stage(Reader& in) {
  std::vector<OpSpec> ops;
  for (int n = in.number(); n > 0; --n) {
    std::vector<char> name = in.array<char>();
    std::vector<int32_t> v = in.array<int32_t>();  // out, leaf, table, inputs...
    ops.emplace_back(std::string(name.begin(), name.end()), v[0],
                     std::vector<int>(v.begin() + 3, v.end()), v[1], v[2], in.array<int32_t>());
  }
  std::vector<int32_t> registers = in.array<int32_t>();
  return {ops, registers, in.number()};
}

std::unique_ptr<Program> read_program(Reader& in) {
  std::vector<StageSpec> stages;
  for (int n = in.number(); n > 0; --n) stages.push_back(read_stage(in));
  std::vector<LeafSpec> leaves;
  for (int n = in.number(); n > 0; --n) {
    std::vector<int32_t> shape = in.array<int32_t>();
    leaves.emplace_back(shape[0], shape[1]);
  }
  std::vector<OutputSpec> outputs;
  for (int n = in.number(); n > 0; --n) {
    std::vector<int32_t> form = in.array<int32_t>();
    outputs.emplace_back(form[0], form[1] != 0);
  }
  std::vector<int32_t> sizes = in.array<int32_t>();  // width, vocabulary, state, inputs, indices
  std::vector<std::vector<int>> tables;
  for (int n = in.number(); n > 0; --n) tables.push_back(in.array<int32_t>());
  std::vector<uint32_t> mantissas = in.array<uint32_t>();
  std::vector<uint64_t> breakpoints = in.array<uint64_t>();
  return std::make_unique<Program>(stages, leaves, sizes[0], sizes[1], sizes[2], tables, mantissas,
                                   breakpoints, sizes[3], sizes[4], outputs);
}

Case read(Reader& in) {
  Case c;
  c.program = read_program(in);
  int leaves = c.program->plan().leaf_count;
  std::vector<int32_t> v = in.array<int32_t>();
  c.rank = v[0], c.shift = v[1], c.members = v[2], c.tokens = v[3];
  c.threshold_matrix = v[4], c.threshold_vector = v[5];
  c.table = in.array<int8_t>();
  c.state = in.array<int8_t>();
  for (int i = 0; i < leaves; ++i) c.weights.push_back(in.array<int8_t>());
  for (int n = in.number(); n > 0; --n) {
    Update u;
    u.starts = in.array<int32_t>();
    u.tokens = in.array<int32_t>();
    u.targets = in.array<int32_t>();
    c.updates.push_back(u);
  }
  c.scores = in.array<int16_t>();
  c.state_after = in.array<int8_t>();
  for (int i = 0; i < leaves; ++i) c.votes.push_back(in.array<int32_t>());
  for (int i = 0; i < leaves; ++i) c.last_weights.push_back(in.array<int8_t>());
  return c;
}

struct Credited {
  std::unique_ptr<Program> program;
  int shift, members, tokens_per_member;
  Crediting crediting;
  std::vector<int8_t> table, state, state_after, inputs;
  std::vector<std::vector<int8_t>> weights;
  std::vector<int32_t> starts, signs, tokens, targets, features, values;
  std::vector<uint32_t> draws;
  std::vector<int16_t> scores;
  std::vector<std::vector<char>> outputs;
  std::vector<std::vector<int32_t>> votes;
};

Credited read_credited(Reader& in) {
  Credited c;
  c.program = read_program(in);
  int leaves = c.program->plan().leaf_count;
  std::vector<int32_t> v = in.array<int32_t>();
  c.shift = v[0], c.members = v[1], c.tokens_per_member = v[2];
  v = in.array<int32_t>();
  c.crediting.mode = v[0], c.crediting.credit_shift = v[1], c.crediting.unit_shift = v[2];
  c.crediting.group = v[3];
  for (auto* numbers :
       {&c.crediting.shifts, &c.crediting.kinds, &c.crediting.owners, &c.crediting.discounts})
    *numbers = in.array<int32_t>();
  check(c.program->plan(), c.crediting);
  c.table = in.array<int8_t>();
  c.state = in.array<int8_t>();
  for (int i = 0; i < leaves; ++i) c.weights.push_back(in.array<int8_t>());
  for (auto* numbers : {&c.starts, &c.signs, &c.tokens, &c.targets}) *numbers = in.array<int32_t>();
  c.draws = in.array<uint32_t>();
  c.inputs = in.array<int8_t>();
  c.features = in.array<int32_t>();
  c.values = in.array<int32_t>();
  for (int i = 0; i < c.program->plan().output_count; ++i) c.outputs.push_back(in.array<char>());
  c.scores = in.array<int16_t>();
  c.state_after = in.array<int8_t>();
  for (int i = 0; i < leaves; ++i) c.votes.push_back(in.array<int32_t>());
  return c;
}

int failures = 0;

template <typename T>
void expect(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  if (got == want) return;
  ++failures;
  std::cout << "  differs: " << what << "\n";
}

std::vector<int8_t> fitness_of(const std::vector<int16_t>& scores, int tokens) {
  std::vector<int8_t> fitness;
  for (size_t i = 0; i < scores.size(); i += 2 * static_cast<size_t>(tokens)) {
    int difference = 0;
    for (int t = 0; t < tokens; ++t)
      difference +=
          scores[i + static_cast<size_t>(t)] - scores[i + static_cast<size_t>(tokens + t)];
    fitness.push_back(static_cast<int8_t>((difference > 0) - (difference < 0)));
  }
  return fitness;
}

std::vector<int32_t> votes_of(const Kernels& k, const Case& c, const Update& u, size_t leaf,
                              const std::vector<int8_t>& fitness) {
  int64_t pairs = static_cast<int64_t>(fitness.size());
  VoteJob job{c.program->plan().leaves[leaf],
              c.table.data(),
              u.starts.data() + static_cast<int64_t>(leaf) * pairs,
              fitness.data(),
              c.rank,
              false};
  std::vector<int32_t> z(c.weights[leaf].size(), 0);
  Scratch scratch(k.vote_bytes(job));
  run_vote(k, job, 0, pairs / 3, z.data(), scratch.p);
  run_vote(k, job, pairs / 3, pairs, z.data(), scratch.p);
  return z;
}

void move(std::vector<int8_t>& w, const std::vector<int32_t>& z, int threshold) {
  for (size_t i = 0; i < w.size(); ++i) {
    int v = w[i] + (z[i] >= threshold || z[i] <= -threshold ? (z[i] > 0 ? 1 : -1) : 0);
    w[i] = static_cast<int8_t>(v > 127 ? 127 : v < -127 ? -127 : v);
  }
}

void replay(const Kernels& k, Case& c, const std::string& name) {
  const Plan plan = c.program->plan(k);
  auto weights = c.weights;
  auto state = c.state;
  for (size_t step = 0; step < c.updates.size(); ++step) {
    const Update& u = c.updates[step];
    const Packed packed(*c.program, k, weights);
    std::vector<int16_t> scores(u.tokens.size());
    std::vector<int8_t> after(state.size());
    Job job{plan,          packed.weights(), c.table.data(),   u.starts.data(), c.rank,
            c.shift,       u.tokens.data(),  u.targets.data(), state.data(),    after.data(),
            scores.data(), nullptr,          c.members,        c.tokens};
    run_blocks(k, job);
    std::vector<int8_t> fitness = fitness_of(scores, c.tokens);
    if (step == 0) expect(scores, c.scores, name + " scores");
    if (step == 0) expect(after, c.state_after, name + " state");
    for (size_t i = 0; i < weights.size(); ++i) {
      std::vector<int32_t> z = votes_of(k, c, u, i, fitness);
      if (step == 0) expect(z, c.votes[i], name + " votes of leaf " + std::to_string(i));
      move(weights[i], z, plan.leaves[i].cols ? c.threshold_matrix : c.threshold_vector);
    }
    state = after;
  }
  for (size_t i = 0; i < weights.size(); ++i)
    expect(weights[i], c.last_weights[i], name + " last weights of leaf " + std::to_string(i));
}

// Z of every leaf, the pairs in two parts as threads share them.
void expect_votes(const Kernels& k, const Credited& c, const CreditWork& work,
                  const std::vector<int32_t>& readout, const std::string& name) {
  int64_t pairs = c.members / 2;
  for (size_t i = 0; i < c.votes.size(); ++i) {
    std::vector<int32_t> z(c.votes[i].size(), 0);
    if (work.kinds[i] == CreditKind::readout) z = readout;
    if (work.counted(static_cast<int>(i))) {
      VoteJob vote = work.vote(static_cast<int>(i));
      Scratch scratch(k.vote_bytes(vote));
      run_vote(k, vote, 0, pairs / 3, z.data(), scratch.p);
      run_vote(k, vote, pairs / 3, pairs, z.data(), scratch.p);
    }
    expect(z, c.votes[i], name + " votes of leaf " + std::to_string(i));
  }
}

Job job_of(const Kernels& k, const Credited& c, const Packed& packed, int block_tokens,
           std::vector<int8_t>& after) {
  Job job{};
  job.plan = c.program->plan(k);
  job.weights = packed.weights();
  job.noise = c.table.data();
  job.starts = c.starts.data();
  job.shift = c.shift;
  job.tokens = c.tokens.data();
  job.targets = c.targets.data();
  job.state_in = c.state.data();
  job.state_out = after.data();
  job.members = c.members;
  job.tokens_per_member = c.tokens_per_member;
  job.signs = c.signs.data();
  job.draws = c.draws.data();
  job.inputs = c.inputs.data();
  job.features = c.features.data();
  job.block_tokens = block_tokens;
  return job;
}

// What the caller has of the members that are credited.
void replay_outputs(const Kernels& k, const Credited& c, const Packed& packed, int block_tokens,
                    const std::string& name) {
  std::vector<int8_t> after(c.state.size());
  std::vector<std::vector<char>> outputs = c.outputs;
  std::vector<void*> places;
  for (std::vector<char>& output : outputs) {
    std::fill(output.begin(), output.end(), 0);
    places.push_back(output.data());
  }
  Job job = job_of(k, c, packed, block_tokens, after);
  job.rank = 1;
  job.outputs = places.data();
  noise_of_nodes(c.crediting, job);
  run_blocks(k, job);
  expect(after, c.state_after, name + " state with outputs");
  for (size_t i = 0; i < outputs.size(); ++i)
    expect(outputs[i], c.outputs[i], name + " output " + std::to_string(i));
}

void replay(const Kernels& k, const Credited& c, int block_tokens, const std::string& name) {
  std::vector<int16_t> scores(c.scores.size());
  std::vector<int8_t> after(c.state.size());
  const Packed packed(*c.program, k, c.weights);
  Job job = job_of(k, c, packed, block_tokens, after);
  job.scores = scores.data();
  if (!c.values.empty()) job.values = c.values.data();
  CreditWork work(job, c.crediting);
  std::vector<int32_t> readout(static_cast<size_t>(work.readout), 0);
  work.job.readout = readout.empty() ? nullptr : readout.data();
  run_blocks(k, work.job);
  expect(scores, c.scores, name + " scores");
  expect(after, c.state_after, name + " state");
  expect_votes(k, c, work, readout, name);
  if (!c.outputs.empty()) replay_outputs(k, c, packed, block_tokens, name);
}

#include "replay_learn.h"

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Reader in(argv[1]);
  std::vector<Case> cases;
  for (int n = in.number(); n > 0; --n) cases.push_back(read(in));
  std::vector<Credited> credited;
  for (int n = in.number(); n > 0; --n) credited.push_back(read_credited(in));
  std::vector<Carried> carried;
  for (int n = in.number(); n > 0; --n) carried.push_back(read_carried(in));
  std::cout << "usable:";
  for (const std::string& isa : usable_isas()) std::cout << " " << isa;
  std::cout << "\n";
  for (const Kernels* k : runnable_units()) {
    std::string isa = k->name;
    for (size_t i = 0; i < cases.size(); ++i)
      replay(*k, cases[i], isa + " case " + std::to_string(i));
    for (size_t i = 0; i < credited.size(); ++i)
      for (int block_tokens : {2, 64})
        replay(*k, credited[i], block_tokens, isa + " credited case " + std::to_string(i));
    for (size_t i = 0; i < carried.size(); ++i)
      replay(*k, carried[i], isa + " carried case " + std::to_string(i));
    std::cout << isa << ": " << cases.size() + credited.size() + carried.size()
              << " cases replayed\n";
  }
  return failures ? 1 : 0;
}
