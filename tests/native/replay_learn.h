// Cases of members that carry their errors back: a part of replay.cpp, which includes it.
#pragma once

struct Carried {
  std::unique_ptr<Program> program;
  int members, tokens_per_member;
  std::vector<int8_t> state, inputs, state_after;
  std::vector<std::vector<int8_t>> weights;
  std::vector<int32_t> tokens, targets, features, scales;
  std::vector<uint32_t> words;
  std::vector<std::vector<int8_t>> back;
  std::vector<int16_t> scores;
  std::vector<int64_t> sizes;
  std::vector<std::vector<int32_t>> votes;
};

Carried read_carried(Reader& in) {
  Carried c;
  c.program = read_program(in);
  const Plan& plan = c.program->plan();
  std::vector<int32_t> shape = in.array<int32_t>();
  c.members = shape[0], c.tokens_per_member = shape[1];
  c.state = in.array<int8_t>();
  for (int i = 0; i < plan.leaf_count; ++i) c.weights.push_back(in.array<int8_t>());
  c.tokens = in.array<int32_t>(), c.targets = in.array<int32_t>();
  c.words = in.array<uint32_t>();
  c.inputs = in.array<int8_t>();
  c.features = in.array<int32_t>(), c.scales = in.array<int32_t>();
  for (int i = 0; i < plan.leaf_count; ++i) c.back.push_back(in.array<int8_t>());
  c.scores = in.array<int16_t>(), c.state_after = in.array<int8_t>();
  c.sizes = in.array<int64_t>();
  for (int i = 0; i < plan.leaf_count; ++i) c.votes.push_back(in.array<int32_t>());
  return c;
}

// The lists of features without their -1s, one after another, and their spans.
struct Spans {
  std::vector<int32_t> index, of;

  explicit Spans(const Carried& c) {
    const Plan& plan = c.program->plan();
    const int64_t rows = int64_t{c.members} * c.tokens_per_member;
    for (int64_t row = 0; row < rows; ++row)
      each_features(plan, [&](const Op& op) {
        const int32_t* list = c.features.data() + row * plan.indices + op.first;
        for (int l = 0; l < op.lists; ++l, list += op.active) {
          const size_t begin = index.size();
          for (int i = 0; i < op.active; ++i)
            if (list[i] >= 0) index.push_back(list[i]);
          of.push_back(static_cast<int32_t>(begin));
          of.push_back(static_cast<int32_t>(index.size() - begin));
        }
      });
    index.shrink_to_fit();  // so that what is read beyond is seen
  }
};

// group: blocks whose lists of features are gone through at once; lists: those that are given as
// spans, or null; refused: whether an index is wrong.
void replay(const Kernels& k, const Carried& c, const std::string& name, int group,
            const Spans* lists = nullptr, bool refused = false) {
  std::vector<int16_t> scores(c.scores.size());
  std::vector<int8_t> after(c.state.size());
  std::vector<int64_t> sizes(c.sizes.size());
  auto votes = c.votes;
  std::vector<std::vector<int8_t>> matrices;
  std::vector<const int8_t*> back;
  std::vector<int32_t*> z;
  for (size_t i = 0; i < votes.size(); ++i) {
    std::fill(votes[i].begin(), votes[i].end(), 0);
    z.push_back(votes[i].data());
    back.push_back(nullptr);
    if (c.back[i].empty()) continue;
    const Leaf& leaf = c.program->plan().leaves[i];
    matrices.emplace_back(k.back_bytes(leaf.rows, leaf.cols));
    back.back() = matrices.back().data();
    k.pack_back(c.back[i].data(), leaf.rows, leaf.cols, matrices.back().data());
  }
  LearnJob learn{};
  Job& job = learn.job;
  const Packed packed(*c.program, k, c.weights);
  job.plan = c.program->plan(k);
  job.weights = packed.weights();
  job.tokens = c.tokens.data(), job.targets = c.targets.data();
  job.state_in = c.state.data(), job.state_out = after.data();
  job.scores = scores.data();
  job.members = c.members, job.tokens_per_member = c.tokens_per_member;
  job.inputs = c.inputs.data(), job.features = c.features.data();
  job.rank = 1, job.block_tokens = 1;
  learn.words = c.words.data();
  learn.scales = c.scales.data();
  learn.back = back.data(), learn.z = z.data(), learn.sizes = sizes.data();
  learn.blocks = group;
  if (lists) learn.index = lists->index.data(), job.features = lists->of.data();
  Scratch scratch(k.learn_bytes(learn));
  // Of leaves with so many rows, which are not few for the lists.
  auto bytes_with = [&](int rows) {
    std::vector<Leaf> tall(job.plan.leaves, job.plan.leaves + job.plan.leaf_count);
    each_features(job.plan, [&](const Op& op) { tall[static_cast<size_t>(op.leaf)].rows = rows; });
    LearnJob same = learn;
    same.job.plan.leaves = tall.data();
    return k.learn_bytes(same);
  };
  const size_t most = bytes_with(1 << 24);
  if (most != bytes_with(1 << 20) || most > k.learn_bytes(learn))
    throw std::runtime_error(name + ": rows of sparse features take scratch memory");
  bool ok = true;
  for (int64_t g = 0; g * group < blocks_of(job); ++g)
    ok &= k.learn(learn, g, scratch.p), check_tiles(k);
  if (ok == refused) throw std::runtime_error(name + (ok ? ": not refused" : ": refused"));
  if (refused) return;
  expect(scores, c.scores, name + " scores");
  expect(after, c.state_after, name + " state");
  expect(sizes, c.sizes, name + " sizes");
  for (size_t i = 0; i < votes.size(); ++i)
    expect(votes[i], c.votes[i], name + " votes of leaf " + std::to_string(i));
}

void replay(const Kernels& k, const Carried& c, const std::string& name) {
  for (int group : {1, 2}) replay(k, c, name + ", groups of " + std::to_string(group), group);
  Spans lists(c);
  if (lists.index.empty()) return;
  for (int group : {1, 2}) replay(k, c, name + ", spans", group, &lists);
  const size_t n = lists.index.size();
  for (size_t i : {size_t{0}, n / 2, n - 1})
    for (int32_t wrong : {1 << 30, -1}) {
      Spans bad = lists;
      bad.index[i] = wrong;
      replay(k, c, name + ", index " + std::to_string(wrong), 2, &bad, true);
    }
}
