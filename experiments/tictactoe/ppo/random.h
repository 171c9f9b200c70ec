// xoshiro128+ (Blackman and Vigna, 2018), a stream for each (seed, iteration, game).
#pragma once

#include <bit>
#include <cstdint>

namespace ppo {

class Random {
 public:
  Random() = default;
  // The state is a hash of the three numbers (splitmix64), so no stream depends on another's use.
  Random(uint64_t seed, uint64_t iteration, uint64_t stream) {
    uint64_t x = mixed(mixed(mixed(seed) ^ iteration) ^ stream);
    for (int i = 0; i < 4; i += 2) {
      x = mixed(x);
      s_[i] = static_cast<uint32_t>(x);
      s_[i + 1] = static_cast<uint32_t>(x >> 32);
    }
    s_[0] |= !(s_[0] | s_[1] | s_[2] | s_[3]);
  }

  uint32_t bits() {
    const uint32_t found = s_[0] + s_[3], shifted = s_[1] << 9;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= shifted;
    s_[3] = std::rotl(s_[3], 11);
    return found;
  }

  // In [0, 1), of the upper 24 bits: the lowest of xoshiro128+ are weak.
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }

  // In [0, n), by a product instead of a remainder.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(uint64_t{bits()} * n >> 32); }

 private:
  static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint32_t s_[4];
};

}  // namespace ppo
