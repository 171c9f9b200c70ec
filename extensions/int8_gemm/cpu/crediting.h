// Token credit of each leaf, checked, and the memory that its jobs need. Independent of MLX.
#pragma once

#include <memory>
#include <vector>

#include "plan.h"

namespace eggroll {

// One number per leaf, but for the first and the last; as in Job.
struct Crediting {
  int mode;  // of Credit
  std::vector<int> shifts, kinds, owners, discounts;
  int credit_shift, unit_shift;
  int group = 0;  // members that are compared with their mean, each with its own signs; 0: pairs
};

// Throws std::invalid_argument for what would address memory it must not, or shift too far.
void check(const Plan& plan, const Crediting& crediting);

// Gives a job the noise of nodes, which points into `crediting`, if that is where it is.
void noise_of_nodes(const Crediting& crediting, Job& job);

// An evaluation with token credit, with the memory its jobs point into.
struct CreditWork {
  Job job{};
  Crediting crediting;
  std::vector<CreditKind> kinds;
  std::vector<int64_t> at;
  std::unique_ptr<int8_t[]> credits;
  int64_t readout = 0;  // weights of the leaf with that kind of credit

  CreditWork(const Job& given, const Crediting& crediting);
  CreditWork(const CreditWork&) = delete;

  // Whether a leaf's votes are counted from its credit, by `vote`.
  bool counted(int leaf) const;
  VoteJob vote(int leaf) const;

 private:
  // Says where the features of a leaf are listed.
  void list(int leaf, VoteJob& vote) const;
};

}  // namespace eggroll
