// Blocks that are kept (blocks.h), under a sanitizer: what threads hold is theirs alone, and no
// more is kept than blocks.h says.

#include "blocks.h"

#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"

using namespace eggroll;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

void used_again() {
  Blocks blocks;
  void* first = blocks.take(6 * kMiB);
  void* second = blocks.take(6 * kMiB);
  expect(reinterpret_cast<uintptr_t>(first) % 64 == 0, "a block begins at a cache line");
  expect((reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(second)) % 4096 != 0,
         "blocks begin at different lines of a page");
  const size_t one = blocks.used() / 2;
  expect(one >= 6 * kMiB && blocks.kept() == 0, "two in use, none kept");
  std::memset(static_cast<char*>(first) - Blocks::kBefore, 1, 6 * kMiB + Blocks::kBefore);
  blocks.give(first);
  expect(blocks.used() == one && blocks.kept() == one, "one in use, one kept");
  void* other = blocks.take(9 * kMiB);  // of no kept block's size, and the bound leaves no room
  expect(blocks.kept() == 0, "a kept block makes room for one of another size");
  void* again = blocks.take(6 * kMiB);
  std::memset(again, 2, 6 * kMiB);
  blocks.give(again);
  expect(blocks.kept() == one, "it is kept");
  again = blocks.take(6 * kMiB);
  expect(blocks.kept() == 0, "it is used again");
  for (void* last : {again, other, second}) blocks.give(last);
}

void bounded() {
  Blocks blocks;
  std::vector<void*> taken;
  for (int i = 0; i < 40; ++i) taken.push_back(blocks.take(8 * kMiB));
  const size_t one = blocks.used() / taken.size();
  while (!taken.empty()) {
    blocks.give(taken.back()), taken.pop_back();
    const size_t most = 2 * blocks.used();
    expect(blocks.kept() <= (most > Blocks::kAlways ? most : Blocks::kAlways), "kept is bounded");
  }
  expect(blocks.kept() + one > Blocks::kAlways, "some blocks are kept in any case");
  expect(blocks.take(SIZE_MAX - 100) == nullptr, "sizes that wrap have no memory");
  expect(blocks.take(SIZE_MAX / 4) == nullptr && blocks.kept() == 0,
         "what is kept goes before there is no memory");
}

void shared() {
  Blocks blocks;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&blocks, &wrong, i] {
      for (size_t round = 0; round < 50; ++round) {
        const size_t bytes = (1 + (round + i) % 3) * kMiB;
        char* mine = static_cast<char*>(blocks.take(bytes));
        for (size_t at = 0; at < bytes; at += kMiB / 4) mine[at] = static_cast<char>(i);
        for (size_t at = 0; at < bytes; at += kMiB / 4)
          wrong[i] += mine[at] != static_cast<char>(i);
        blocks.give(mine);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int found : wrong) expect(found == 0, "a block belongs to one thread");
  expect(blocks.used() == 0, "all was given back");
}

}  // namespace

int main() {
  used_again();
  bounded();
  shared();
  if (failures) return 1;
  std::cout << "blocks are kept and used again\n";
}
