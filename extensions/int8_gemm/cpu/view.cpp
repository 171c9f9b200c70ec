#include "view.h"

#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "mlx/allocator.h"

namespace eggroll {

namespace nb = nanobind;
namespace mx = mlx::core;

namespace {

using Given = nb::ndarray<nb::ro, nb::device::cpu>;

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument("view: " + what);
}

// Gives up what was kept alive, on whichever thread MLX is done with it. A reference that outlives
// the interpreter is leaked.
void release(PyObject* owner) {
  if (!Py_IsInitialized() || !nb::is_alive()) return;
  nb::gil_scoped_acquire gil;
  Py_DECREF(owner);
}

// Bytes of its own that MLX's CPU allocator has before the data of a buffer, the same in every
// buffer; -1: buffers are of another kind.
ptrdiff_t header() {
  auto before = [] {
    mx::allocator::Data data = mx::allocator::malloc(64);
    mx::allocator::Buffer buffer = data.buffer();
    return static_cast<char*>(buffer.raw_ptr()) - static_cast<char*>(buffer.ptr());
  };
  ptrdiff_t first = before();
  return first == before() && first >= 0 && first <= 64 ? first : -1;
}

bool contiguous(const Given& a) {
  int64_t stride = 1;
  for (size_t i = a.ndim(); a.size() && i-- > 0; stride *= static_cast<int64_t>(a.shape(i)))
    if (a.shape(i) != 1 && a.stride(i) != stride) return false;
  return true;
}

}  // namespace

mx::array view(const nb::object& given) {
  Given a;
  require(nb::ndarray_check(given) && nb::try_cast(given, a), "an array of NumPy is needed");
  bool bytes = a.dtype() == nb::dtype<int8_t>();
  require(bytes || a.dtype() == nb::dtype<int32_t>(), "int8 or int32 is needed");
  require(contiguous(a), "a C-contiguous array is needed");
  require(a.size() < size_t{1} << 31, "an array of fewer than 2^31 values is needed");
  mx::Shape shape;
  for (size_t i = 0; i < a.ndim(); ++i) shape.push_back(static_cast<int>(a.shape(i)));
  mx::Dtype dtype = bytes ? mx::int8 : mx::int32;
  void* data = const_cast<void*>(a.data());
  PyObject* owner = given.inc_ref().ptr();
  static const ptrdiff_t before = header();
  // This MLX never reuses, resizes or caches a buffer that is not its own, so of its allocator's
  // header only the place counts.
  if (before >= 0 && a.size()) {
    mx::allocator::Buffer buffer(static_cast<char*>(data) - before);
    auto deleter = [owner](mx::allocator::Buffer) { release(owner); };
    return mx::array(mx::allocator::Data(buffer, deleter), shape, dtype);
  }
  return mx::array(data, shape, dtype, [owner](void*) { release(owner); });
}

}  // namespace eggroll
