// Packed weights as an array: a header that names the instruction set, then weights at a cache
// line.
//
// The lines may be shifted within the array, by as much as the header says.
#pragma once

#include <cstdint>
#include <cstring>

#include "plan.h"

namespace eggroll {

constexpr int64_t kPackedHeader = 128;  // bytes, with those that the weights are shifted by
constexpr int64_t kPackedName = 56;     // of the instruction set, and then the shift

// Writes the header into zeros; where the weights begin.
inline int8_t* open_packed(const Kernels& k, int8_t* packed) {
  std::strncpy(reinterpret_cast<char*>(packed), k.name, kPackedName - 1);
  const uintptr_t at = reinterpret_cast<uintptr_t>(packed) + 64;
  packed[kPackedName] = static_cast<int8_t>((64 - at % 64) % 64);
  return packed + 64 + packed[kPackedName];
}

inline const int8_t* packed_weights(const int8_t* packed) {
  return packed + 64 + packed[kPackedName];
}

// Whether it is a header of this instruction set.
inline bool packed_for(const Kernels& k, const int8_t* packed) {
  const char* name = reinterpret_cast<const char*>(packed);
  return std::strncmp(name, k.name, kPackedName) == 0 && packed[kPackedName] >= 0 &&
         packed[kPackedName] < 64;
}

}  // namespace eggroll
