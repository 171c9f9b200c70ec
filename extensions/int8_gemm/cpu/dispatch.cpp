#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace eggroll {

#define EGG_DECLARE(name)       \
  namespace name {              \
  extern const Kernels kernels; \
  }
EGG_DECLARE(generic)
EGG_DECLARE(avx2)
EGG_DECLARE(avxvnni)
EGG_DECLARE(avx512vnni)
EGG_DECLARE(amx)
EGG_DECLARE(neon)
EGG_DECLARE(neon_dotprod)
EGG_DECLARE(neon_i8mm)

namespace {

#ifdef __aarch64__
#ifdef __APPLE__
bool has_feature(const char* name) {
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname(name, &has, &size, nullptr, 0) == 0 && has;
}
[[maybe_unused]] bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
[[maybe_unused]] bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
#ifndef HWCAP2_I8MM  // kernel headers before 5.7
#define HWCAP2_I8MM (1 << 13)
#endif
[[maybe_unused]] bool has_dotprod() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
[[maybe_unused]] bool has_i8mm() { return getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#endif
#endif

#ifdef EGG_HAVE_AVXVNNI
// By leaf 7.1, as not every compiler's __builtin_cpu_supports knows the name. Asked once: a virtual
// machine takes as long for the answer as for a hundred rows.
bool has_avxvnni() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
  }();
  return has;
}
#endif

#if defined(EGG_HAVE_AVX512VNNI) || defined(EGG_HAVE_AMX)
bool has_avx512vnni() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
#endif

#ifdef EGG_HAVE_AMX
// The processor has tiles of bytes, the system keeps them, and it lets this process use them: Linux
// alone has to be asked, once, for all threads.
bool has_amx() {
#ifdef __linux__
  static const bool has = [] {
    constexpr unsigned kOsXsave = 1u << 27, kTile = 1u << 24, kInt8 = 1u << 25, kState = 3u << 17;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsXsave)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
    asm("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & kState) == kState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}
#endif

// Tests every flag of the unit's row in CMakeLists.txt.
std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> found;
#ifdef EGG_HAVE_AMX
  if (has_avx512vnni() && has_amx()) found.push_back(&amx::kernels);
#endif
#ifdef EGG_HAVE_AVX512VNNI
  if (has_avx512vnni()) found.push_back(&avx512vnni::kernels);
#endif
#ifdef EGG_HAVE_AVXVNNI
  if (has_avxvnni() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    found.push_back(&avxvnni::kernels);
#endif
#ifdef EGG_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    found.push_back(&avx2::kernels);
#endif
#ifdef EGG_HAVE_NEON_I8MM
  if (has_i8mm() && has_dotprod()) found.push_back(&neon_i8mm::kernels);
#endif
#ifdef EGG_HAVE_NEON_DOTPROD
  if (has_dotprod()) found.push_back(&neon_dotprod::kernels);
#endif
#ifdef EGG_HAVE_NEON
  found.push_back(&neon::kernels);  // part of the architecture
#endif
  found.push_back(&generic::kernels);
  return found;
}

}  // namespace

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const Kernels* k : usable()) names.emplace_back(k->name);
  return names;
}

const Kernels& kernels() {
  const char* wanted = std::getenv("EGGROLL_ISA");
  std::vector<const Kernels*> found = usable();
  if (!wanted || !*wanted) return *found.front();
  std::string names;
  for (const Kernels* k : found) {
    if (std::string(wanted) == k->name) return *k;
    names += std::string(names.empty() ? "" : ", ") + k->name;
  }
  throw std::invalid_argument("EGGROLL_ISA is '" + std::string(wanted) +
                              "', which this build on this processor cannot run; usable: " + names +
                              ".");
}

}  // namespace eggroll
