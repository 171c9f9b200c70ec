// What a fuzzer's bytes decide: numbers below given ends, first from the bytes, then from a
// sequence that their beginning seeds, so that few bytes make a whole case and most changes stay
// local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {
    uint32_t seed = 1;
    std::memcpy(&seed, data, size < sizeof seed ? size : sizeof seed);
    tail_.seed(seed);
  }

  // In low..high, both included; low where there is nothing between.
  int draw(int low, int high) {
    if (high <= low) return low;
    uint32_t room = static_cast<uint32_t>(high) - static_cast<uint32_t>(low) + 1;
    uint32_t word = byte();
    for (uint32_t most = 256; room > most && most < 1u << 24; most <<= 8) word = word << 8 | byte();
    return static_cast<int>(static_cast<uint32_t>(low) + (room ? word % room : word));
  }

  bool one_in(int n) { return draw(0, n - 1) == 0; }

  template <typename T>
  auto& pick(T& from) {
    return from[static_cast<size_t>(draw(0, static_cast<int>(from.size()) - 1))];
  }

  // A number of the kind that programs get wrong, or one close to `usual`.
  int hostile(int usual) {
    static const std::vector<int> kinds = {0,
                                           -1,
                                           1,
                                           2,
                                           -2,
                                           127,
                                           128,
                                           -128,
                                           255,
                                           256,
                                           32767,
                                           32768,
                                           65535,
                                           65536,
                                           1 << 20,
                                           (1 << 20) + 1,
                                           1 << 23,
                                           1 << 24,
                                           (1 << 24) - 1,
                                           1 << 30,
                                           INT32_MAX,
                                           INT32_MAX - 1,
                                           INT32_MIN,
                                           INT32_MIN + 1};
    if (one_in(2))
      return static_cast<int>(static_cast<unsigned>(usual) + static_cast<unsigned>(draw(-3, 3)));
    return pick(kinds);
  }

  // Bulk data, which the bytes do not decide one by one.
  int any(int low, int high) {
    return static_cast<int>(
        low + static_cast<int64_t>(tail_() % (static_cast<uint64_t>(high) - low + 1)));
  }
  uint32_t word() { return static_cast<uint32_t>(tail_()); }

 private:
  uint32_t byte() { return at_ < end_ ? *at_++ : static_cast<uint32_t>(tail_() & 255); }

  const uint8_t *at_, *end_;
  std::minstd_rand tail_;
};

}  // namespace fuzz
