// Runs a kernel of extensions/nax_check/child.py on the CPU: its logic and its bounds, not Apple's
// compiler. Built with -DKERNEL="file" (the header's defines and the body) and the tile's threads.
// Usage: metal_product GRID_X GRID_Y LEFT RIGHT PRODUCT, files of int8, int8 and int32.

#include <array>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#define device
#define threadgroup static  // one threadgroup runs at a time, its threads share

using half = float;  // int8 values are exact in either
constexpr size_t dynamic_extent = size_t(-1);

struct Position {
  unsigned x, y, z;
};
thread_local Position threadgroup_position_in_grid;
thread_local unsigned thread_index_in_simdgroup, thread_index;
std::barrier<>* all_threads;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

enum class mem_flags { mem_threadgroup };
void threadgroup_barrier(mem_flags) { all_threads->arrive_and_wait(); }

// Every lane keeps a whole matrix; the first one stores it.
template <typename T>
struct Matrix {
  T v[64];
};
using simdgroup_half8x8 = Matrix<half>;
using simdgroup_float8x8 = Matrix<float>;

template <typename T, int, int>
Matrix<T> make_filled_simdgroup_matrix(T value) {
  Matrix<T> m;
  for (T& v : m.v) v = value;
  return m;
}
template <typename T>
void simdgroup_load(Matrix<T>& m, const T* from, int stride) {
  for (int i = 0; i < 64; ++i) m.v[i] = from[i / 8 * stride + i % 8];
}
template <typename T>
void simdgroup_store(const Matrix<T>& m, T* to, int stride) {
  if (thread_index_in_simdgroup) return;
  for (int i = 0; i < 64; ++i) to[i / 8 * stride + i % 8] = m.v[i];
}
void simdgroup_multiply_accumulate(Matrix<float>& d, const Matrix<half>& a, const Matrix<half>& b,
                                   const Matrix<float>& c) {
  for (int i = 0; i < 64; ++i) {
    float sum = c.v[i];
    for (int k = 0; k < 8; ++k) sum += a.v[i / 8 * 8 + k] * b.v[k * 8 + i % 8];
    d.v[i] = sum;
  }
}

namespace metal {
template <typename T>
using remove_addrspace_t = T;
}

// Tensors: the first coordinate runs along memory; a slice keeps what lies beyond its start.
template <typename, int>
struct dextents {
  int size[2];
  dextents(int x, int y) : size{x, y} {}
};
struct tensor_inline {};
template <typename T, typename Extents, typename>
struct tensor {
  T* data;
  Extents extents;
  int x0 = 0, y0 = 0;
  tensor(T* d, Extents e) : data(d), extents(e) {}
  tensor slice(int x, int y) const {
    tensor part = *this;
    part.x0 += x;
    part.y0 += y;
    return part;
  }
  int extent(int i) const { return extents.size[i] - (i ? y0 : x0); }
  T at(int x, int y) const {
    require(x < extent(0) && y < extent(1), "read past a tensor's end");
    return data[(y0 + y) * extents.size[0] + x0 + x];
  }
};

namespace mpp::tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed;
  mode kind;
  constexpr matmul2d_descriptor(int m, int n, int k, bool l, bool r, bool x, mode kind)
      : m(m), n(n), k(k), transpose_left(l), transpose_right(r), relaxed(x), kind(kind) {}
};
template <int N>
struct execution_simdgroups {
  static constexpr int threads = 32 * N;
};

template <matmul2d_descriptor D, typename Scope>
struct matmul2d {
  static_assert(!D.transpose_left && !D.transpose_right && D.k == int(dynamic_extent));
  static_assert(D.kind == matmul2d_descriptor::mode::multiply_accumulate);
  static_assert(Scope::threads == THREADS);

  // A thread's share of the destination, with three elements that are none.
  template <typename T>
  struct Share {
    static constexpr int valid = D.m * D.n / Scope::threads;
    T v[valid + 3];
    Share() {
      for (T& x : v) x = T(0x5a5a5a5a);  // registers start with anything
    }
    unsigned get_capacity() const { return valid + 3; }
    bool is_valid_element(unsigned i) const { return i < valid; }
    T& operator[](unsigned i) { return v[i]; }
    std::array<int, 2> get_multidimensional_index(unsigned i) const {
      require(i < valid, "index of an element that is none");
      const int e = int(i) * Scope::threads + int(thread_index);
      return {e % D.n, e / D.n};
    }
  };
  template <typename L, typename R, typename T>
  Share<T> get_destination_cooperative_tensor() const {
    return {};
  }
  template <typename L, typename R, typename T>
  void run(const L& left, const R& right, Share<T>& to) const {
    require(left.extent(0) == right.extent(1), "K differs");
    for (unsigned i = 0; i < Share<T>::valid; ++i) {
      const auto [x, y] = to.get_multidimensional_index(i);
      for (int k = 0; k < left.extent(0); ++k) to[i] += T(left.at(k, y)) * T(right.at(x, k));
    }
  }
};
}  // namespace mpp::tensor_ops

void kernel(const int8_t* left, const int8_t* right, int32_t* product) {
#include KERNEL
}

std::vector<char> read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int main(int argc, char** argv) {
  require(argc == 6, "five arguments are needed");
  const auto left = read(argv[3]), right = read(argv[4]);
  require(left.size() == SIZE_M * SIZE_K && right.size() == SIZE_K * SIZE_N, "another size");
  std::vector<int32_t> product(SIZE_M * SIZE_N, -1);
  std::barrier<> barrier(THREADS);
  all_threads = &barrier;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < THREADS; ++t) {
    threads.emplace_back([&, t] {
      thread_index = t;
      thread_index_in_simdgroup = t % 32;
      for (unsigned y = 0; y < unsigned(std::atoi(argv[2])); ++y) {
        for (unsigned x = 0; x < unsigned(std::atoi(argv[1])); ++x) {
          threadgroup_position_in_grid = {x, y, 0};
          kernel(reinterpret_cast<const int8_t*>(left.data()),
                 reinterpret_cast<const int8_t*>(right.data()), product.data());
          barrier.arrive_and_wait();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::ofstream file(argv[5], std::ios::binary);
  file.write(reinterpret_cast<const char*>(product.data()), 4 * std::ptrdiff_t(product.size()));
  return file.good() ? 0 : 1;
}
