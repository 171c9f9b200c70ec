// Refusals of what comes from outside. Not for the instruction sets' units.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace eggroll {

constexpr int kThreads = 1024;  // that work is shared by, at most

// Throws std::invalid_argument, which is ValueError in Python.
inline void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

inline void in_range(const std::string& what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw std::invalid_argument(what + " is " + std::to_string(value) + ": " + std::to_string(low) +
                                " to " + std::to_string(high) + " is allowed");
}

// 0: all cores.
inline void check_threads(int threads) { in_range("threads", threads, 0, kThreads); }

}  // namespace eggroll
