// A block's scratch memory, and its members with their parts of the job.

// Hands memory out piece by piece; without a base it only counts the bytes needed.
struct Arena {
  char* base;
  size_t used = 0;

  template <typename T>
  T* take(size_t count) {
    used = (used + 63) & ~size_t{63};
    T* p = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += count * sizeof(T);
    return p;
  }
};

struct Members {
  const Job& job;
  int64_t first_member;

  int64_t member(int lane) const { return first_member + 2 * (lane % kPairs) + lane / kPairs; }
  int64_t clamped(int lane) const {
    int64_t m = member(lane);
    return m < job.members ? m : job.members - 1;
  }
  int64_t pair(int p) const {
    int64_t i = first_member / 2 + p;
    return i < job.members / 2 ? i : job.members / 2 - 1;
  }
  const int8_t* slice(int leaf, int p) const {
    return job.noise + job.starts[leaf * (job.members / 2) + pair(p)];
  }
  bool nodes() const { return job.credit == Credit::nodes; }
  bool credited(int leaf, CreditKind kind) const {
    return job.credit_kind && job.credit_kind[leaf] == kind;
  }
  int rank() const { return job.starts && !nodes() ? job.rank : 0; }
  bool silent(const Op& op) const { return nodes() && job.shifts[op.leaf] == kSilent; }

  // Where a lane's tokens begin, and its targets.
  int64_t stream(int lane) const { return clamped(lane) / job.readers * job.tokens_per_member; }

  // Of every pair, in bit t % 32, whether the noise of a leaf is turned at token t.
  void signs(int leaf, int t, uint32_t* to) const {
    const int64_t row = (job.tokens_per_member + 31) / 32, pairs = job.members / 2;
    const int32_t* from = job.signs + leaf * pairs * row + t / 32;
    if (row == 1 && first_member / 2 + kPairs <= pairs)
      __builtin_memcpy(to, from + first_member / 2, kPairs * sizeof *to);
    else
      for (int p = 0; p < kPairs; ++p) to[p] = static_cast<uint32_t>(from[pair(p) * row]);
  }

  // All ones for the lanes whose noise of a leaf is turned at token t. In a group the second member
  // of a pair has signs of its own.
  void turned(int leaf, int t, uint32_t* minus) const {
    alignas(64) uint32_t first[kPairs], second[kPairs];
    signs(leaf, t, first);
    __builtin_memcpy(second, first, sizeof second);
    for (int p = 0; job.group && p < kPairs; ++p) second[p] = mixed(second[p]);
    for (int p = 0; p < kPairs; ++p) minus[p] = 0u - (first[p] >> (t % 32) & 1u);
    for (int p = 0; p < kPairs; ++p) minus[p + kPairs] = 0u - (second[p] >> (t % 32) & 1u);
  }
};
