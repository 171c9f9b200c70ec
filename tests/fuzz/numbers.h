// Draws and rules, whose arrays may hold anything.
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

// Rule master on a leaf that holds anything.
class MasterCase {
 public:
  explicit MasterCase(Input& in) : n(in.draw(0, 40)), threads(in.draw(1, 3)) {
    factor = in.one_in(3) ? int64_t{1} << 62 : int64_t{in.word()} << in.draw(0, 29);
    decay = in.one_in(3) ? 1 << 24 : in.draw(0, 1 << 24);
    for (int i = 0; i < n; ++i) {
      votes.push_back(in.one_in(4) ? in.hostile(0) : static_cast<int32_t>(in.word()));
      fine.push_back(in.one_in(4) ? in.hostile(0) : static_cast<int32_t>(in.word()));
      weights.push_back(static_cast<int8_t>(in.any(-128, 127)));
    }
  }

  std::vector<mx::array> run() const {
    std::vector<int8_t> w(weights.size());
    std::vector<int32_t> f(fine.size());
    const int64_t moved = add_votes(
        {{votes.data(), weights.data(), fine.data(), w.data(), f.data(), n, factor, decay}},
        threads);
    return {mx::array(moved), array_of(w, {n}, mx::int8), array_of(f, {n}, mx::int32)};
  }

 private:
  int n, threads;
  int64_t factor, decay;
  std::vector<int32_t> votes, fine;
  std::vector<int8_t> weights;
};

// Rule whitened on a leaf that holds anything but impossible matrices.
class WhitenedCase {
 public:
  explicit WhitenedCase(Input& in)
      : outputs(in.draw(1, 40)), inputs(in.draw(1, 140)), threads(in.draw(1, 3)) {
    matrices = in.one_in(2), learns = in.one_in(2), feedback = in.one_in(3);
    factor = in.one_in(3) ? 1 << 30 : in.draw(0, 1 << 30);
    floor = in.one_in(2) ? 1 : in.draw(1, 1 << 30);
    blocks = (inputs + kWhitenedInputs - 1) / kWhitenedInputs;
    size = matrices ? (inputs + blocks - 1) / blocks : inputs;
    const int n = outputs * inputs;
    for (auto& values : given)
      for (int i = 0; i < n; ++i)
        values.push_back(in.one_in(4) ? in.hostile(0) : static_cast<int32_t>(in.word()));
    for (int i = 0; i < n; ++i) weights.push_back(static_cast<int8_t>(in.any(-128, 127)));
    constexpr int kMost = (1 << 19) - 1;
    for (int i = 0; matrices && i < blocks * size * size; ++i)
      square.push_back(in.one_in(4) ? kMost : in.draw(0, 2 * kMost) - kMost);
  }

  std::vector<mx::array> run() const {
    std::vector<int8_t> w(weights.size());
    std::vector<int16_t> turned(weights.size());
    std::vector<int32_t> fine(w.size()), back(w.size()), next(square.size());
    const bool wanted = matrices && learns;
    WhitenedLeaf leaf{given[0].data(),
                      weights.data(),
                      given[1].data(),
                      feedback ? given[2].data() : nullptr,
                      {w.data(), fine.data(), feedback ? back.data() : nullptr},
                      outputs,
                      inputs,
                      size,
                      factor,
                      floor,
                      matrices ? square.data() : nullptr,
                      wanted ? next.data() : nullptr,
                      wanted ? turned.data() : nullptr};
    const int64_t moved = whiten({leaf}, threads);
    const int n = outputs * inputs;
    return {mx::array(moved), array_of(w, {n}, mx::int8), array_of(fine, {n}, mx::int32),
            array_of(back, {n}, mx::int32),
            array_of(next, {static_cast<int>(next.size())}, mx::int32)};
  }

 private:
  int outputs, inputs, threads, blocks, size;
  bool matrices, learns, feedback;
  double factor, floor;
  std::array<std::vector<int32_t>, 3> given;
  std::vector<int8_t> weights;
  std::vector<int32_t> square;
};

}  // namespace fuzz
