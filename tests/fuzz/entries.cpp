// The functions of engine.h and what they rest on, on what no caller should give them.
//
// One input is one call. FUZZ_TARGET says what is changed: `programs` are declared wrongly,
// `arguments` do not fit their program, `worlds` are hostile, `values` go to kernels whose arrays
// may hold anything. A call either throws std::invalid_argument or gives the same bits on every
// instruction set, whatever new memory holds; the sanitizers see what it touches. Counts go to
// FUZZ_COUNTS at the end.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "calls.h"
#include "dispatch.h"
#include "numbers.h"
#include "played.h"

// Of the sanitizers; not every compiler that checks this file has their headers.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));

namespace fuzz {

namespace {

std::string target;
long long accepted = 0, refused = 0;

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "fuzz: %s\n", why);
  std::abort();
}

// Small enough to be run in a moment; the others were only declared.
bool small(const Spec& spec) {
  int64_t values = spec.width + spec.inputs + spec.indices;
  for (const auto& stage : spec.stages)
    for (int size : std::get<1>(stage)) values += size;
  for (auto [rows, cols] : spec.leaves) values += int64_t{rows} * std::max(cols, 1);
  return values < 1 << 17;
}

// What a call gives, whole.
using Result = std::vector<std::vector<char>>;

Result bytes_of(std::vector<mx::array> arrays) {
  mx::eval(arrays);
  Result result;
  for (const mx::array& a : arrays)
    result.emplace_back(a.data<char>(), a.data<char>() + a.nbytes());
  return result;
}

// What new memory holds, but for what is so large that calloc does not clear it afterwards: another
// byte on another instruction set, so that what a call gives and never wrote differs.
unsigned char fresh = 0;

void fill(const volatile void* memory, size_t size) {
  if (size <= 1 << 16) std::memset(const_cast<void*>(memory), fresh, size);
}

// Runs a call on every instruction set of this processor, and compares.
template <typename Call>
void compare(Call call) {
  static const std::vector<std::string> isas = usable_isas();
  std::optional<Result> first;
  for (const std::string& isa : isas) {
    setenv("EGGROLL_ISA", isa.c_str(), 1);
    ++fresh;
    mx::clear_cache();
    Result result = bytes_of(call());
    if (first && *first != result) fail("two instruction sets differ");
    if (!first) first = std::move(result);
  }
}

void programs(Input& in) {
  Spec spec = Builder(in, in.one_in(8)).build();
  for (int n = in.draw(0, 3); n > 0; --n) change(in, spec);
  auto program = spec.program();
  if (!small(spec)) return;
  Call call(in, program, 0);
  compare([&] { return call.run(); });
}

void arguments(Input& in) {
  Spec spec = Builder(in, false).build();
  Call call(in, spec.program(), in.draw(0, 3));
  compare([&] { return call.run(); });
}

void values(Input& in) {
  if (in.one_in(3)) {
    Draw given = drawn(in);
    int threads = in.one_in(8) ? in.hostile(1) : in.draw(0, 3);
    return compare([&] {
      return std::vector<mx::array>{
          draws(given.streams, given.rooms, given.first, given.shape, threads, false)};
    });
  }
  if (in.one_in(8)) {
    WhitenedCase given(in);
    return compare([&] { return given.run(); });
  }
  if (in.one_in(6)) {
    MasterCase given(in);
    return compare([&] { return given.run(); });
  }
  AdamCase given(in);
  compare([&] { return given.run(); });
}

void worlds(Input& in) {
  Spec spec = Builder(in, true).build();
  PlayCase given(in, spec.program());
  compare([&] { return given.run(); });
}

void run(Input& in) {
  if (target == "programs") return programs(in);
  if (target == "arguments") return arguments(in);
  if (target == "worlds") return worlds(in);
  if (target == "values") return values(in);
  fail("FUZZ_TARGET is none of programs, arguments, worlds, values");
}

void count() {
  const char* path = std::getenv("FUZZ_COUNTS");
  std::FILE* file = path ? std::fopen(path, "w") : nullptr;
  if (!file) return;
  std::fprintf(file, "%lld %lld\n", accepted, refused);
  std::fclose(file);
}

}  // namespace

}  // namespace fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* named = std::getenv("FUZZ_TARGET");
  fuzz::target = named ? named : "";
  std::atexit(fuzz::count);
  __sanitizer_install_malloc_and_free_hooks(fuzz::fill, [](const volatile void*) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  try {
    fuzz::run(in);
    ++fuzz::accepted;
  } catch (const std::invalid_argument&) {
    ++fuzz::refused;
  }
  return 0;
}
