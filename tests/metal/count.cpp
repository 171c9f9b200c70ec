// Counts what a kernel does: linked in place of the sanitizers by counting.py, which puts a call
// into every basic block. ThreadSanitizer's hooks, which clang inserts, tell every access.
//
// At its end the process writes "name number" lines beside its program: blocks as "block 7",
// accesses as "read weights 4".

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

namespace {

struct Range {
  const char *begin, *end;
};
std::map<std::string, Range> ranges;
std::map<std::string, uint64_t> bytes[2];
uint64_t accesses;
std::vector<uint64_t> blocks;

void access(bool write, const void* at, uint64_t size) {
  const char* p = static_cast<const char*>(at);
  for (const auto& [name, range] : ranges)
    if (p >= range.begin && p < range.end) {
      bytes[write][name] += size;
      ++accesses;
    }
}

void report() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length] = 0;
  FILE* out = fopen((std::string(path) + ".counts").c_str(), "w");
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i]) fprintf(out, "block %zu %llu\n", i, (unsigned long long)blocks[i]);
  fprintf(out, "access - %llu\n", (unsigned long long)accesses);
  for (int write = 0; write < 2; ++write)
    for (const auto& [name, count] : bytes[write])
      fprintf(out, "%s %s %llu\n", write ? "write" : "read", name.c_str(),
              (unsigned long long)count);
  fclose(out);
}

struct AtEnd {
  ~AtEnd() { report(); }
} at_end;  // the last one here, so the first to go

}  // namespace

namespace emu {
void lies_at(const char* name, const void* block, unsigned long size) {
  const char* begin = static_cast<const char*>(block);
  ranges[name] = {begin, begin + size};
}
}  // namespace emu

extern "C" {
void emu_block(uint32_t number) {
  if (blocks.size() <= number) blocks.resize(number + 1);
  blocks[number] += 1;
}
void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void* __tsan_memset(void* to, int value, uint64_t size) { return memset(to, value, size); }
void* __tsan_memmove(void* to, const void* from, uint64_t size) { return memmove(to, from, size); }
void* __tsan_memcpy(void* to, const void* from, uint64_t size) { return memcpy(to, from, size); }
#define HOOK(SIZE)                                                        \
  void __tsan_read##SIZE(void* at) { access(false, at, SIZE); }           \
  void __tsan_write##SIZE(void* at) { access(true, at, SIZE); }           \
  void __tsan_unaligned_read##SIZE(void* at) { access(false, at, SIZE); } \
  void __tsan_unaligned_write##SIZE(void* at) { access(true, at, SIZE); }
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
}
