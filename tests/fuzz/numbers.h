// Draws and Adam, whose arrays may hold anything.
#pragma once

#include <array>
#include <vector>

#include "maker.h"
#include "rules.h"
#include "spec.h"

namespace fuzz {

struct Draw {
  std::vector<uint64_t> streams, rooms;
  uint64_t first;
  std::vector<int> shape;
};

inline Draw drawn(Input& in) {
  std::vector<uint64_t> streams, rooms;
  std::vector<int> shape;
  int n = in.draw(0, 4), axes = in.draw(0, 3);
  for (int i = 0; i < n; ++i) {
    streams.push_back(in.word());
    rooms.push_back(in.one_in(6) ? uint64_t{in.word()} << in.draw(0, 32) : in.word());
  }
  if (in.one_in(8)) disarrange(in, rooms);
  for (int i = 0; i < axes; ++i) shape.push_back(i ? in.draw(0, 9) : n * in.draw(0, 9));
  // Sizes that are asked for are refused or small: memory is not what is tried.
  if (in.one_in(6) && axes) {
    for (int& axis : shape) axis = in.hostile(axis);
    double size = 1;
    for (int axis : shape) size *= axis;
    if (size > 1 << 20 && size < 0x1p31) shape = {0};
  }
  return {streams, rooms, uint64_t{in.word()} << in.draw(0, 32), shape};
}

// Adam on a leaf that holds anything.
class AdamCase {
 public:
  explicit AdamCase(Input& in) : n(in.draw(0, 40)), factor(in.draw(0, 64 << 16)) {
    decay = in.one_in(3) ? 1 << 24 : in.draw(0, 1 << 24);
    feedback = in.one_in(2);
    for (auto& values : given)
      for (int i = 0; i < n; ++i)
        values.push_back(in.one_in(4) ? in.hostile(0) : static_cast<int32_t>(in.word()));
    for (int i = 0; i < n; ++i) weights.push_back(static_cast<int8_t>(in.any(-128, 127)));
  }

  std::vector<mx::array> run() const {
    std::vector<int8_t> w(weights.size());
    std::array<std::vector<int32_t>, 4> made;
    for (auto& values : made) values.resize(w.size());
    AdamLeaf leaf{{weights.data(), given[1].data(), given[2].data(), given[3].data(),
                   feedback ? given[4].data() : nullptr},
                  {w.data(), made[0].data(), made[1].data(), made[2].data(),
                   feedback ? made[3].data() : nullptr},
                  given[0].data(),
                  n,
                  decay};
    int64_t moved = adam({leaf}, factor, 1);
    std::vector<mx::array> out{mx::array(moved), array_of(w, {n}, mx::int8)};
    for (const auto& values : made) out.push_back(array_of(values, {n}, mx::int32));
    return out;
  }

 private:
  int n;
  int64_t factor, decay;
  bool feedback;
  std::array<std::vector<int32_t>, 5> given;
  std::vector<int8_t> weights;
};

}  // namespace fuzz
