#include "crediting.h"

#include <stdexcept>
#include <string>

namespace eggroll {

namespace {

// Of a vector's noise at the largest sigma_shift, 24.
constexpr int kMostShift = 27;

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument("crediting: " + what);
}

bool fits(CreditKind kind, OpKind op) {
  if (kind == CreditKind::none) return true;
  if (op == OpKind::embed) return kind == CreditKind::tokens;
  if (op == OpKind::features) return kind == CreditKind::features;
  if (op == OpKind::score && kind == CreditKind::readout) return true;
  return kind == (multiplies(op) ? CreditKind::inputs : CreditKind::scalar);
}

}  // namespace

void check(const Plan& plan, const Crediting& crediting) {
  size_t n = static_cast<size_t>(plan.leaf_count);
  require(crediting.mode == 1 || crediting.mode == 2, "mode must be 1 or 2");
  require(crediting.shifts.size() == n && crediting.kinds.size() == n &&
              crediting.owners.size() == n && crediting.discounts.size() == n,
          "one number per leaf is needed");
  require(crediting.credit_shift >= 0 && crediting.credit_shift <= 16, "credit_shift is in 0..16");
  require(crediting.unit_shift >= 0 && crediting.unit_shift <= 8, "unit_shift is in 0..8");
  int group = crediting.group;
  require(
      group == 0 || (crediting.mode == 2 && group >= 4 && group <= kLanes && kLanes % group == 0),
      "a group is of 4, 8, 16 or 32 members, with noise on nodes");
  for (int i = 0; i < plan.leaf_count; ++i) {
    size_t l = static_cast<size_t>(i);
    const Leaf& leaf = plan.leaves[i];
    require(crediting.kinds[l] >= 0 && crediting.kinds[l] <= 5, "kinds are 0..5");
    require((crediting.shifts[l] >= 0 && crediting.shifts[l] <= kMostShift) ||
                crediting.shifts[l] == kSilent,
            "shifts are 0.." + std::to_string(kMostShift) + " or silent");
    require(crediting.discounts[l] >= 0 && crediting.discounts[l] <= 15, "discounts are 0..15");
    int owner = crediting.owners[l];
    require(owner >= 0 && owner < plan.leaf_count, "an owner is no leaf");
    require(owner == i || (plan.leaves[owner].cols && plan.leaves[owner].rows == leaf.rows),
            "a leaf's owner has other outputs");
    CreditKind kind = static_cast<CreditKind>(crediting.kinds[l]);
    require(owner == i || (kind != CreditKind::tokens && kind != CreditKind::features),
            "an embedding owns its noise, and so do features");
  }
  for (int s = 0; s < plan.stage_count; ++s)
    for (int j = 0; j < plan.stages[s].op_count; ++j) {
      const Op& op = plan.stages[s].ops[j];
      if (op.leaf < 0) continue;
      CreditKind kind = static_cast<CreditKind>(crediting.kinds[static_cast<size_t>(op.leaf)]);
      require(fits(kind, op.kind), "a leaf's kind does not fit its operation");
    }
}

void noise_of_nodes(const Crediting& crediting, Job& job) {
  if (static_cast<Credit>(crediting.mode) != Credit::nodes) return;
  job.credit = Credit::nodes;
  job.shifts = crediting.shifts.data();
  job.group = crediting.group;
}

CreditWork::CreditWork(const Job& given, const Crediting& of) : job(given), crediting(of) {
  for (int i = 0; i < job.plan.leaf_count; ++i) {
    const Leaf& leaf = job.plan.leaves[i];
    CreditKind kind = static_cast<CreditKind>(crediting.kinds[static_cast<size_t>(i)]);
    kinds.push_back(kind);
    at.push_back(job.credit_size);
    if (kind == CreditKind::inputs) job.credit_size += leaf.cols;
    if (kind == CreditKind::tokens || kind == CreditKind::features)
      job.credit_size += job.tokens_per_member;
    if (kind == CreditKind::scalar) job.credit_size += 1;
    if (kind == CreditKind::readout) readout = static_cast<int64_t>(leaf.rows) * leaf.cols;
  }
  // Blocks write all of it.
  credits = std::make_unique_for_overwrite<int8_t[]>(
      static_cast<size_t>(job.members / 2 * job.credit_size));
  job.rank = 1;
  job.credit = static_cast<Credit>(crediting.mode);
  job.credit_shift = crediting.credit_shift;
  job.unit_shift = crediting.unit_shift;
  job.group = crediting.group;
  job.shifts = crediting.shifts.data();
  job.owners = crediting.owners.data();
  job.discounts = crediting.discounts.data();
  job.credit_kind = kinds.data();
  job.credit_at = at.data();
  job.credits = credits.get();
}

bool CreditWork::counted(int leaf) const {
  CreditKind kind = kinds[static_cast<size_t>(leaf)];
  return kind != CreditKind::none && kind != CreditKind::readout;
}

VoteJob CreditWork::vote(int leaf) const {
  int owner = job.owners[leaf];
  VoteJob vote{};
  vote.leaf = job.plan.leaves[leaf];
  vote.noise = job.noise;
  vote.starts = job.starts + owner * (job.members / 2);
  vote.rank = 1;
  vote.kind = kinds[static_cast<size_t>(leaf)];
  vote.credits = job.credits + at[static_cast<size_t>(leaf)];
  vote.credit_stride = job.credit_size;
  bool product = vote.kind == CreditKind::scalar && owner == leaf;
  vote.a_at = product ? -1 : job.plan.leaves[owner].cols;
  vote.tokens = job.tokens;
  vote.tokens_per_member = job.tokens_per_member;
  vote.readers = job.readers;
  if (vote.kind == CreditKind::features) list(leaf, vote);
  return vote;
}

void CreditWork::list(int leaf, VoteJob& vote) const {
  for (int s = 0; s < job.plan.stage_count; ++s)
    for (int j = 0; j < job.plan.stages[s].op_count; ++j) {
      const Op& op = job.plan.stages[s].ops[j];
      if (op.leaf != leaf) continue;
      vote.features = job.features + op.first;
      vote.indices = job.plan.indices;
      vote.lists = op.lists;
      vote.active = op.active;
      vote.nodes = job.credit == Credit::nodes;
    }
}

}  // namespace eggroll
