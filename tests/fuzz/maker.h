// Arrays that fit a call, and some that do not.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine.h"
#include "input.h"
#include "mlx/mlx.h"

namespace fuzz {

namespace mx = mlx::core;

template <typename T>
mx::array array_of(const std::vector<T>& values, mx::Shape shape, mx::Dtype dtype) {
  return mx::array(values.data(), std::move(shape), dtype);
}

// Makes arrays, `wrong` of them with a shape, a type or a value that does not fit.
class Maker {
 public:
  Maker(Input& from, int changes) : in(from), wrong(changes) {}

  mx::array whole(mx::Shape shape, int low, int high) {
    shape = reshaped(shape);
    std::vector<int32_t> values(size_of(shape));
    for (int32_t& v : values) v = in.any(low, high);
    if (!values.empty() && due()) in.pick(values) = in.hostile(high);
    return typed(array_of(values, shape, mx::int32));
  }

  mx::array bytes(mx::Shape shape, int low = -127) {
    shape = reshaped(shape);
    std::vector<int8_t> values(size_of(shape));
    for (int8_t& v : values) v = static_cast<int8_t>(in.any(low, 127));
    if (!values.empty() && due()) in.pick(values) = -128;
    return typed(array_of(values, shape, mx::int8));
  }

  // Noise, whose values nobody looks at beforehand: they are many, and the package's own.
  mx::array table(int length) {
    std::vector<int8_t> values(static_cast<size_t>(length));
    for (int8_t& v : values) v = static_cast<int8_t>(in.any(-127, 127));
    return typed(array_of(values, {length}, mx::int8));
  }

  mx::array words(mx::Shape shape) {
    shape = reshaped(shape);
    std::vector<uint32_t> values(size_of(shape));
    for (uint32_t& v : values) v = in.word();
    return typed(array_of(values, shape, mx::uint32));
  }

  int number(int usual) { return due() ? in.hostile(usual) : usual; }

  // Whether this argument is to be wrong; few calls have none.
  bool due() {
    if (wrong == 0 || !in.one_in(6)) return false;
    --wrong;
    return true;
  }

 private:
  static size_t size_of(const mx::Shape& shape) {
    size_t n = 1;
    for (int axis : shape) n *= static_cast<size_t>(axis);
    return n;
  }

  mx::Shape reshaped(mx::Shape shape) {
    if (!due() || shape.empty()) return shape;
    int& axis = in.pick(shape);
    switch (in.draw(0, 3)) {
      case 0:
        shape.push_back(1);
        break;
      case 1:
        shape.pop_back();
        break;
      case 2:
        axis = 0;
        break;
      default:
        axis = std::max(0, axis + in.draw(-2, 2));
    }
    return shape;
  }

  mx::array typed(const mx::array& a) {
    if (!due()) return a;
    const std::array types = {mx::int8, mx::uint8, mx::int16, mx::int32, mx::uint32, mx::int64};
    if (in.one_in(4)) return mx::transpose(a);
    return mx::astype(a, in.pick(types));
  }

  Input& in;
  int wrong;
};

// Weights, to be packed for the instruction set in use.
struct Packing {
  std::vector<mx::array> leaves;

  eggroll::Packed of(const std::shared_ptr<eggroll::Program>& program) const {
    return {program, leaves};
  }
};

}  // namespace fuzz
