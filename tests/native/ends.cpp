// Numbers at the ends of what kernels count with, by every unit against reference.h: quotients that
// are whole, or one off, for every divisor of a linear operation and of a norm, and sums of
// exponentials over vocabularies whose largest values together pass 32 bits.
//
// ends [n]: every n-th case only, where time is short.

#include <cmath>
#include <iostream>
#include <memory>
#include <string>

#include "program.h"
#include "reference.h"
#include "units.h"

using namespace eggroll;

namespace {

using Ints = std::vector<int32_t>;

std::vector<const Kernels*> units;
int failures = 0;

void expect(const Kernels& k, bool ok, const std::string& what) {
  if (ok) return;
  if (++failures <= 20) std::cout << "  differs: " << k.name << " " << what << "\n";
}

std::unique_ptr<Program> program(std::vector<OpSpec> ops, std::vector<int> registers,
                                 const std::vector<LeafSpec>& leaves, int vocabulary, int bits,
                                 const std::vector<OutputSpec>& outputs) {
  std::vector<uint32_t> mantissas;
  for (int f = 0; f < 16; ++f) mantissas.push_back(reference::mantissa(f));
  std::vector<uint64_t> breakpoints;
  for (int i = 1; i < 1 << bits; ++i)
    breakpoints.push_back(static_cast<uint64_t>(std::ceil(std::exp2(63 + std::ldexp(i, -bits)))));
  return std::make_unique<Program>(std::vector<StageSpec>{{std::move(ops), registers, -1}}, leaves,
                                   1, vocabulary, 0, std::vector<std::vector<int>>{}, mantissas,
                                   breakpoints, registers[2], 0, outputs);
}

Job job_of(const Kernels& k, const Program& p, const Packed& packed, const Bytes& inputs,
           const Ints& tokens) {
  Job job{};
  job.plan = p.plan(k);
  job.weights = packed.weights();
  job.tokens = job.targets = tokens.data();
  job.inputs = inputs.data();
  job.members = static_cast<int64_t>(tokens.size());
  job.tokens_per_member = job.block_tokens = job.rank = 1;
  return job;
}

// One operation with a leaf on rows of inputs, seen through an output.
void compare(const char* kind, LeafSpec leaf, const Bytes& weights, const Bytes& inputs, int size,
             const Bytes& want, const std::string& what) {
  int outputs = leaf.first;
  auto p = program(
      {{"input", 2, {}, -1, 0, {}}, {kind, 3, {2}, 0, 0, {}}, {"output", 0, {3}, -1, 0, {0}}},
      {1, 1, size, outputs}, {leaf}, 2, 4, {{outputs, false}});
  Ints tokens(inputs.size() / static_cast<size_t>(size), 1);
  for (const Kernels* k : units) {
    Packed packed(*p, *k, {weights});
    Job job = job_of(*k, *p, packed, inputs, tokens);
    Bytes got(want.size());
    void* to[] = {got.data()};
    job.outputs = to;
    run_blocks(*k, job);
    expect(*k, got == want, what);
  }
}

// d^2 inputs of a 1 and 127s: sums 16 d q + r for quotients at the clip's ends and in the middle.
void linear_case(int d) {
  int inputs = d * d;
  Bytes x(static_cast<size_t>(inputs), 127), weights;
  x[0] = 1;
  int outputs = 0;
  for (int q : {-129, -128, -127, -126, -2, -1, 0, 1, 2, 125, 126, 127, 128, 129})
    for (int r : {-17, -16, -1, 0, 1, 15, 16}) {
      int sum = 16 * d * q + r, most = 127 * (inputs - 1);
      int many = std::clamp((sum + (sum < 0 ? -63 : 63)) / 127, -most, most);
      Bytes row(static_cast<size_t>(inputs), 0);
      row[0] = static_cast<int8_t>(std::clamp(sum - 127 * many, -127, 127));
      for (int k = 1; k < inputs; ++k) {
        int part = std::clamp(many, -127, 127);
        row[static_cast<size_t>(k)] = static_cast<int8_t>(part), many -= part;
      }
      weights.insert(weights.end(), row.begin(), row.end()), ++outputs;
    }
  Bytes rows = x, want = reference::linear(weights, outputs, x, {nullptr, 0, 0, 1});
  for (int8_t& v : x) v = static_cast<int8_t>(-v);
  rows.insert(rows.end(), x.begin(), x.end());
  Bytes other = reference::linear(weights, outputs, x, {nullptr, 0, 0, 1});
  want.insert(want.end(), other.begin(), other.end());
  compare("linear", {outputs, inputs}, weights, rows, inputs, want,
          "quotients by 16 x " + std::to_string(d));
}

// Every mean m: values of size m, whose quotients are the weights themselves, and m + 1 and m - 1.
void norm_case() {
  constexpr int kSize = 256;
  Bytes weights, inputs, want;
  for (int i = 0; i < kSize; ++i) weights.push_back(static_cast<int8_t>(i % 255 - 127));
  for (int m = 1; m <= 127; ++m)
    for (int sign : {1, -1})
      for (int off : {0, 1}) {
        Bytes x;
        for (int i = 0; i < kSize; ++i) {
          int by = m == 127 ? 0 : off;
          x.push_back(static_cast<int8_t>(sign * (i % 2 ? m + by : m - by)));
        }
        Bytes y = reference::norm(x, weights);
        inputs.insert(inputs.end(), x.begin(), x.end()),
            want.insert(want.end(), y.begin(), y.end());
      }
  compare("norm", {kSize, 0}, weights, inputs, kSize, want, "quotients of a norm");
}

// A vocabulary whose first `high` logits are 127 and the others -127.
void score_case(int vocabulary, int high, int bits) {
  auto p = program({{"input", 2, {}, -1, 0, {}}, {"score", 0, {2}, 0, 0, {}}}, {1, 1, 1},
                   {{vocabulary, 1}}, vocabulary, bits, {});
  Bytes weights(static_cast<size_t>(vocabulary), -127);
  std::fill_n(weights.begin(), high, 127);
  double sum = 0;
  uint64_t total = 0;
  for (int8_t v : weights) {
    sum += static_cast<double>(reference::mantissa((v + 128) % 16) >> (31 - bits - (v + 128) / 16));
    total += uint64_t{reference::mantissa((v + 128) % 16)} << (v + 128) / 16;
  }
  int unit = 1 << bits, hit = 255 << (bits - 4);
  int score = hit - static_cast<int>(std::floor(unit * std::log2(sum / unit)));
  Bytes inputs(34, 127);
  Ints tokens(34, 0);
  for (const Kernels* k : units) {
    Packed packed(*p, *k, {weights});
    Job job = job_of(*k, *p, packed, inputs, tokens);
    std::vector<int16_t> scores(34);
    job.scores = scores.data();
    run_blocks(*k, job);
    std::string what = std::to_string(high) + " of " + std::to_string(vocabulary) +
                       " logits at the top, " + std::to_string(bits) + " bits";
    expect(*k, scores == std::vector<int16_t>(34, static_cast<int16_t>(score)), what);
    std::vector<uint64_t> totals(34);
    Bytes hits(34);
    job.scores = nullptr, job.totals = totals.data(), job.hits = hits.data();
    run_blocks(*k, job);
    expect(*k, totals == std::vector<uint64_t>(34, total), what + ", exact");
  }
}

}  // namespace

int main(int argc, char** argv) {
  int every = argc > 1 ? std::atoi(argv[1]) : 1, turn = 0, linear = 0, scores = 0;
  auto due = [&] { return turn++ % every == 0; };
  units = runnable_units();
  for (int d : {2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 15, 17, 21, 27, 31, 33, 45, 63, 90})
    if (due()) linear_case(d), ++linear;
  norm_case();
  for (int bits : {4, 8})
    for (int vocabulary : {255, 257, 4095, 4096, 4097, 4279, 8193, 9001})
      for (int high : {1, vocabulary / 2, vocabulary})
        if (due()) score_case(vocabulary, high, bits), ++scores;
  for (const Kernels* k : units)
    std::cout << k->name << ": " << linear << " divisors, " << scores << " vocabularies\n";
  if (failures) std::cout << failures << " differ\n";
  return failures ? 1 : 0;
}
