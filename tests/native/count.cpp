// How votes are shared by threads (count.h) and work by parallel_for, under a sanitizer of threads:
// a kernel of our own votes its pair's number, so that each pair counts once, whoever counts it.

#include "count.h"

#include <atomic>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include "expect.h"

using namespace eggroll;

namespace {

size_t vote_bytes(const VoteJob&) { return 64; }

void vote(const VoteJob& job, int64_t first, int64_t last, int32_t* z, void* scratch) {
  std::memset(scratch, 1, 64);
  for (int64_t p = first; p < last; ++p)
    for (int64_t i = 0; i < elements(job.leaf); ++i)
      z[i] += static_cast<int32_t>((p + 1) * (1 + i % 3));
}

void votes(int64_t pairs, int threads, CreditKind kind) {
  Kernels kernels{};
  kernels.vote_bytes = vote_bytes, kernels.vote = vote;
  std::vector<VoteJob> jobs(3);
  std::vector<std::vector<int32_t>> z;
  const Leaf leaves[] = {{3, 5, 0}, {40, 0, 0}, {7, 9, 0}};
  std::vector<int32_t*> to;
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].leaf = leaves[i], jobs[i].kind = kind;
    z.emplace_back(static_cast<size_t>(elements(leaves[i])), 77);
  }
  for (auto& votes : z) to.push_back(votes.data());
  count_votes(kernels, jobs, to, pairs, threads);
  const std::string name = std::to_string(pairs) + " pairs, " + std::to_string(threads) +
                           " threads, kind " + std::to_string(static_cast<int>(kind));
  for (auto& votes : z)
    for (size_t i = 0; i < votes.size(); ++i)
      expect(votes[i] == static_cast<int32_t>(pairs * (pairs + 1) / 2 * (1 + i % 3)), name);
}

// Every item once; an exception of any thread reaches the caller when all have ended.
void items(int64_t count, int threads, int64_t bad) {
  std::vector<int> done(static_cast<size_t>(count), 0);
  std::string said;
  try {
    parallel_for(count, threads, [&](int64_t i, int thread) {
      expect(thread >= 0 && thread < threads, "a thread's number");
      ++done[static_cast<size_t>(i)];
      if (i == bad) throw std::runtime_error("bad item");
    });
  } catch (const std::runtime_error& error) {
    said = error.what();
  }
  expect(said == (bad < 0 ? "" : "bad item"), "an exception of item " + std::to_string(bad));
  for (int times : done) expect(bad < 0 ? times == 1 : times <= 1, "an item's calls");
}

// Calls of several threads at once, and calls within calls, share the same threads.
void at_once(int callers, int threads) {
  std::vector<std::thread> started;
  std::atomic<int64_t> done{0};
  for (int c = 0; c < callers; ++c)
    started.emplace_back([&] {
      for (int round = 0; round < 20; ++round)
        parallel_for(7, threads, [&](int64_t, int) {
          parallel_for(5, threads, [&](int64_t, int thread) {
            expect(thread >= 0 && thread < threads, "a thread's number within a call");
            ++done;
          });
        });
    });
  for (std::thread& thread : started) thread.join();
  expect(done == callers * 20 * 7 * 5, "calls within calls of " + std::to_string(callers));
}

}  // namespace

int main() {
  for (int64_t pairs : {1, 1023, 2048, 2049, 3333})
    for (int threads : {1, 2, 3, 4})
      for (CreditKind kind : {CreditKind::none, CreditKind::features}) votes(pairs, threads, kind);
  for (int threads : {1, 2, 4})
    for (int64_t bad : {-1, 0, 1, 57, 99}) items(100, threads, bad);
  for (int callers : {1, 2, 5})
    for (int threads : {1, 2, 4}) at_once(callers, threads);
  std::cout << (failures ? "differs" : "every pair and every item once") << "\n";
  return failures ? 1 : 0;
}
