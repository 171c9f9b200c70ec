// Runs a kernel's grid on one core, threads as fibers, and answers requests on stdin. The kernel is
// linked with this, or in the library that the first argument names.
//
// A simdgroup runs as far as it can before the next one starts, in the order asked for. memory.cpp
// checks what they read and write; where it is not linked, arrays are blocks and nothing is
// checked.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fiber.h"
#include "include/metal_stdlib"
#include "memory.h"
#include "runtime.h"

namespace emu {

constexpr size_t STACK = 256 << 10;
constexpr int LANES = 32;
#ifndef EMU_SHARED_BYTES
#define EMU_SHARED_BYTES 32768  // of threadgroup memory on every Apple GPU
#endif

struct Product {
  float2 a, b;
  const float2* c;
  float2* d;
};

struct Fiber {
  Context context;
  char* stack;
  uint index;
  Exchange at;
  int64_t result;
  std::vector<Product> products;
};

Position position;

#define WEAK __attribute__((weak))
WEAK void entry(void** arrays);
WEAK void lies_at(const char*, const void*, unsigned long) {}
WEAK void* take(Kind, const char* name, size_t bytes, int garbage) {
  static std::map<std::string, std::vector<char>> blocks;
  std::vector<char>& block = blocks[name];
  block.assign(bytes + 1, char(garbage));
  lies_at(name, block.data(), bytes);
  return block.data();
}
WEAK void* take_shared(const char* name, size_t begin, size_t bytes) {
  alignas(16) static char block[EMU_SHARED_BYTES];
  lies_at(name, block + begin, bytes);
  return block + begin;
}
WEAK void kernel_has(const void*) {}
WEAK void begin_launch() {}
WEAK void end_launch() {}
WEAK void begin_threadgroup(size_t, int) {}
WEAK void order_threads(unsigned) {}
WEAK void order_lanes(unsigned, unsigned) {}
WEAK void begin_thread(unsigned, const char*, size_t) {}
WEAK void read_by_any_lane(const void*, size_t) {}

namespace {

Context scheduler;
std::vector<Fiber*> fibers;
Fiber* now;
void* arrays[64];  // inputs, then outputs; a kernel's entry reads it
unsigned char garbage;
void (*kernel)(void**) = entry;

// An array of threadgroup memory: its place among the bytes that the launch asks for.
struct Part {
  void* at;
  size_t begin, bytes;
};
std::map<std::string, Part> parts;
size_t shared_bytes, parts_end;  // asked for; up to the end of the last array

size_t whole(size_t bytes) { return (bytes + 15) / 16 * 16; }

void to_scheduler() { switch_context(&now->context, &scheduler); }

void body() {
  kernel(arrays);
  now->products.clear();
  now->at = {FINISHED, 0, 0};
  to_scheduler();
}

void run(Fiber* fiber) {
  now = fiber;
  fiber->at.wait = RUNNING;
  position.lane = fiber->index % LANES;
  position.simdgroup = fiber->index / LANES;
  position.index = fiber->index;
  begin_thread(fiber->index, fiber->stack, STACK);
  switch_context(&scheduler, &fiber->context);
}

// Where element e of a lane stands in an 8 x 8 matrix.
int row_of(int lane) { return ((lane >> 2) & 4) + ((lane >> 1) & 3); }
int column_of(int lane, int e) { return ((lane >> 1) & 4) + (lane & 1) * 2 + e; }

// The products that the lanes of a simdgroup have put off, in their order.
void multiply(Fiber* const* lanes) {
  for (size_t n = 0; n < lanes[0]->products.size(); ++n) {
    float a[8][8], b[8][8], c[8][8];
    for (int i = 0; i < LANES; ++i)
      for (int e = 0; e < 2; ++e) {
        const Product& mine = lanes[i]->products[n];
        a[row_of(i)][column_of(i, e)] = mine.a[e];
        b[row_of(i)][column_of(i, e)] = mine.b[e];
        c[row_of(i)][column_of(i, e)] = (*mine.c)[e];
      }
    for (int r = 0; r < 8; ++r)
      for (int i = 0; i < 8; ++i)
        for (int k = 0; k < 8; ++k) c[r][k] += a[r][i] * b[i][k];
    for (int i = 0; i < LANES; ++i)
      for (int e = 0; e < 2; ++e) {
        const float sum = c[row_of(i)][column_of(i, e)];
        if (sum >= 16777216 || sum <= -16777216) fail("a float sum reaches 2^24");
        (*lanes[i]->products[n].d)[e] = sum;
      }
  }
  for (int i = 0; i < LANES; ++i) lanes[i]->products.clear();
}

// All lanes of a simdgroup have come to the same operation: gives each its result.
void resolve(Fiber* const* lanes) {
  const Exchange& first = lanes[0]->at;
  for (int i = 1; i < LANES; ++i)
    if (lanes[i]->at.wait != first.wait || lanes[i]->at.mask != first.mask ||
        lanes[i]->products.size() != lanes[0]->products.size())
      fail("the lanes of a simdgroup came to different operations");
  int64_t sum = 0;
  for (int i = 0; i < LANES; ++i) sum += lanes[i]->at.value;
  for (int i = 0; i < LANES; ++i)
    lanes[i]->result = first.wait == SUM ? sum : lanes[i ^ first.mask]->at.value;
  if (first.wait == MULTIPLY) multiply(lanes);
  if (first.wait == SIMDGROUP) order_lanes(lanes[0]->index / LANES, first.mask);
}

// Runs one simdgroup up to its next barrier or its end.
void advance(Fiber* const* lanes, const std::vector<int>& order) {
  for (;;) {
    for (int i : order) run(lanes[i]);
    resolve(lanes);
    if (lanes[0]->at.wait == THREADGROUP || lanes[0]->at.wait == FINISHED) return;
  }
}

void make(Fiber* fiber, uint index) {
  fiber->index = index;
  make_context(&fiber->context, fiber->stack, STACK, body);
}

void run_group(uint threads, Order order, std::mt19937& chance) {
  while (fibers.size() < threads) {
    Fiber* fiber = new Fiber();
    fiber->stack = static_cast<char*>(
        mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fibers.push_back(fiber);
  }
  for (uint i = 0; i < threads; ++i) make(fibers[i], i);
  begin_threadgroup(shared_bytes, garbage);
  parts.clear();
  parts_end = 0;
  std::vector<int> groups(threads / LANES), lanes(LANES);
  std::iota(groups.begin(), groups.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  for (;;) {
    if (order == REVERSE) {
      std::sort(groups.rbegin(), groups.rend());
      std::sort(lanes.rbegin(), lanes.rend());
    } else if (order == SHUFFLED) {
      std::shuffle(groups.begin(), groups.end(), chance);
      std::shuffle(lanes.begin(), lanes.end(), chance);
    }
    for (int g : groups) advance(&fibers[g * LANES], lanes);
    const Exchange& first = fibers[0]->at;
    for (int g : groups)
      if (const Exchange& at = fibers[g * LANES]->at;
          at.wait != first.wait || at.mask != first.mask)
        fail("the simdgroups of a threadgroup came to different barriers");
    if (first.wait == FINISHED) break;
    order_threads(first.mask);
  }
  if (parts_end != whole(shared_bytes))
    fail(("a launch asks for " + std::to_string(shared_bytes) + " bytes of threadgroup memory, " +
          "and its arrays take " + std::to_string(parts_end))
             .c_str());
}

void run_grid(const uint (&grid)[3], const uint (&group)[3], Order order) {
  std::mt19937 chance(grid[0]);
  for (int i = 0; i < 3; ++i)
    if (grid[i] % group[i]) fail("the grid is not made of whole threadgroups");
  if (group[1] != 1 || group[2] != 1 || group[0] % LANES) fail("threadgroups must be rows of 32 n");
  const uint count[3] = {grid[0] / group[0], grid[1], grid[2]};
  for (uint i = 0; i < count[0] * count[1] * count[2]; ++i) {
    const uint at = order == REVERSE ? count[0] * count[1] * count[2] - 1 - i : i;
    position.group[0] = at % count[0];
    position.group[1] = at / count[0] % count[1];
    position.group[2] = at / count[0] / count[1];
    position.size = group[0];
    run_group(group[0], order, chance);
  }
}

template <typename T>
bool get(T* to, size_t count) {
  return fread(to, sizeof(T), count, stdin) == count;
}

// Request: order, grid, threadgroup, number of arrays, bytes of threadgroup memory; then of each
// array its kind, its bytes, and what an input has. Answer: what the others have.
bool answer() {
  uint head[9];
  if (!get(head, 9)) return false;
  const uint grid[3] = {head[1], head[2], head[3]}, group[3] = {head[4], head[5], head[6]};
  std::vector<std::pair<void*, uint64_t>> going;
  if (head[7] > std::size(arrays)) fail("too many arrays");
  shared_bytes = head[8];
  if (shared_bytes > EMU_SHARED_BYTES) fail("more threadgroup memory than there is");
  garbage = garbage == 0x80 ? 0x5a : 0x80;
  begin_launch();
  for (uint i = 0; i < head[7]; ++i) {
    uint64_t about[2];
    if (!get(about, 2)) fail("a request ends early");
    void* block = take(Kind(about[0]), std::to_string(i).c_str(), about[1], garbage);
    arrays[i] = block;
    if (about[0]) {
      going.emplace_back(block, about[1]);
    } else if (!get(static_cast<char*>(block), about[1])) {
      fail("a request ends early");
    }
  }
  run_grid(grid, group, Order(head[0]));
  end_launch();
  for (auto [block, bytes] : going) fwrite(block, 1, bytes, stdout);
  fflush(stdout);
  return true;
}

void load(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  void* found = library ? dlsym(library, "_ZN3emu5entryEPPv") : nullptr;
  if (!found) fail(dlerror());
  kernel = reinterpret_cast<void (*)(void**)>(found);
  kernel_has(found);
}

}  // namespace

int64_t exchange(Exchange mine) {
  if (mine.wait != MULTIPLY) multiply_now();
  now->at = mine;
  Fiber* me = now;
  to_scheduler();
  return me->result;
}

void multiply_later(float2* d, float2 a, float2 b, const float2* c) {
  now->products.push_back({a, b, c, d});
}

void multiply_now() {
  if (!now->products.empty()) exchange({MULTIPLY, 0, 0});
}

float2 multiply(float2 a, float2 b, float2 c) {
  float2 d;
  multiply_later(&d, a, b, &c);
  multiply_now();
  return d;
}

void* shared(const char* name, unsigned long offset, unsigned long bytes) {
  const auto found = parts.find(name);
  if (found != parts.end()) {
    const Part& part = found->second;
    if (part.bytes != bytes || (offset != AFTER && part.begin != offset))
      fail(("two arrays of threadgroup memory have the name " + std::string(name)).c_str());
    return part.at;
  }
  const size_t begin = offset == AFTER ? parts_end : offset, end = begin + bytes;
  const std::string array = std::string("the array ") + name + " of threadgroup memory ";
  if (begin % 16) fail((array + "begins within 16 bytes").c_str());
  if (end > shared_bytes) fail((array + "ends behind what the launch asks for").c_str());
  for (const auto& [other, part] : parts)
    if (begin < part.begin + part.bytes && part.begin < end)
      fail((array + "overlaps " + other).c_str());
  parts_end = std::max(parts_end, whole(end));
  void* at = take_shared(name, begin, bytes);
  parts[name] = {at, begin, bytes};
  return at;
}

unsigned lane_index() { return position.lane; }

void fail(const char* why) {
  fprintf(stderr, "emulator: %s\n", why);
  _exit(3);
}

}  // namespace emu

int main(int count, char** words) {
  if (count > 1) emu::load(words[1]);
  while (emu::answer()) {
  }
}
