// Cases of kernels.cpp that are made for one bound. Included by it alone, inside its namespace.

// x.B where it just fits 16 bits, or just does not, of sums that are clipped to 16 bits or are not:
// members' inputs are 127 three times and 1, and B makes of them what is wanted.
void bound_case(int inputs, int wanted, int shift) {
  constexpr int kOutputs = 24, kMembers = 34, kVocabulary = 9;
  StageSpec stage{{op("linear", 2, {1}, 0), op("score", 0, {2}, 1)}, {inputs, inputs, kOutputs}, 0};
  std::vector<LeafSpec> leaves = {{kOutputs, inputs}, {kVocabulary, kOutputs}};
  const size_t wide = static_cast<size_t>(inputs);
  Trial t{"bound " + std::to_string(inputs) + ", x.B " + std::to_string(wanted) + ", shift " +
              std::to_string(shift),
          program({stage}, leaves, inputs, kVocabulary, inputs),
          {Bytes(kOutputs * wide), fill(Fill::any, kVocabulary * kOutputs)},
          Bytes(wide + kOutputs),
          Ints(kMembers),
          1,
          shift,
          kMembers,
          Ints(kMembers, 1),
          {},
          Bytes(kMembers * wide)};
  for (int m = 0; m < kMembers; ++m)
    for (size_t k = 0; k < 4; ++k) t.state[static_cast<size_t>(m) * wide + k] = k < 3 ? 127 : 1;
  for (size_t o = 0; o < kOutputs; ++o)  // sums from -48,000 to 48,000, and noise against them
    for (size_t k = 0; k < 4; ++k)
      t.weights[0][o * wide + k] = static_cast<int8_t>(11 * static_cast<int>(o) - 126);
  for (int k = 0, left = wanted; k < 4; ++k) {
    const int part = k < 3 ? std::clamp(left / 127, -127, 127) : left;
    t.table[static_cast<size_t>(k)] = static_cast<int8_t>(part);
    left -= part * (k < 3 ? 127 : 1);
  }
  for (int o = 0; o < kOutputs; ++o)
    t.table[wide + static_cast<size_t>(o)] = static_cast<int8_t>(o % 3 ? 127 - o : o - 127);
  // The head's slices begin later, within what there is of the table.
  t.table.resize(2 * wide + 4 * kOutputs, 5);
  t.starts = Ints(kMembers / 2, 0);
  t.starts.resize(kMembers, kOutputs);
  for (int m = 0; m < kMembers; ++m) t.targets.push_back(m % kVocabulary);
  compare(t, two_products(t, inputs, kOutputs, kVocabulary));
}

int bound_cases() {
  int done = 0;
  for (int inputs : {9, 49, 64, 100, 128, 144, 192, 255, 256, 300, 400, 1024})
    for (int size : {10414, 10416, 20828, 20830, 20831, 20832, 32766, 32767, 32768, 32769, 41000})
      for (int shift : {8, 7, 12})
        for (int sign : {1, -1})
          if (due(done)) bound_case(inputs, sign * size, shift);
  return done;
}
