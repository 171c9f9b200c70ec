#include "draws.h"

#include <algorithm>
#include <utility>

#include "checks.h"
#include "dispatch.h"
#include "machine.h"
#include "memory.h"

namespace eggroll {

namespace mx = mlx::core;

namespace {

constexpr int64_t kFew = 1 << 17;   // numbers that take 20 to 130 microseconds
constexpr int64_t kPart = 1 << 16;  // of a stream that a thread draws at a time

}  // namespace

mx::array draws(const std::vector<uint64_t>& streams, const std::vector<uint64_t>& rooms,
                uint64_t first, const std::vector<int>& shape, int threads) {
  require(streams.size() == rooms.size(), "draws: one room per stream is needed");
  for (uint64_t room : rooms) require(room <= uint64_t{1} << 32, "draws: rooms are at most 2^32");
  int64_t size = 1;
  for (int axis : shape) {
    require(axis >= 0, "draws: a shape has no negative numbers");
    require(!__builtin_mul_overflow(size, int64_t{axis}, &size), "draws: the shape is too large");
  }
  require(size < int64_t{1} << 31, "draws: an array holds fewer than 2^31 numbers");
  check_threads(threads);
  int64_t count = streams.empty() ? 0 : size / static_cast<int64_t>(streams.size());
  require(count * static_cast<int64_t>(streams.size()) == size,
          "draws: the shape is not shared by the streams");
  mx::allocator::Data data = allocated(static_cast<size_t>(size) * sizeof(int32_t));
  auto* out = static_cast<int32_t*>(data.buffer().raw_ptr());
  const auto draw = kernels().draw;
  // A stream may be long: it is drawn in parts.
  int64_t parts = (count + kPart - 1) / kPart, items = static_cast<int64_t>(streams.size()) * parts;
  parallel_for(items, size < kFew ? 1 : threads, [&](int64_t item, int) {
    int64_t part = item % parts * kPart, length = std::min(kPart, count - part);
    auto i = static_cast<size_t>(item / parts);
    int32_t* to = out + item / parts * count + part;
    if (rooms[i])
      draw(streams[i], first + static_cast<uint64_t>(part), length, rooms[i], to);
    else
      std::fill_n(to, length, 0);
  });
  return mx::array(std::move(data), mx::Shape(shape.begin(), shape.end()), mx::int32);
}

}  // namespace eggroll
