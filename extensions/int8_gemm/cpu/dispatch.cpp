#include "dispatch.h"

#include <cstdlib>

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

#ifdef __x86_64__
[[maybe_unused]] bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
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
  return has_avx2() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512ifma");
}
#endif

#ifdef EGG_HAVE_AMX
// Volatile, so that it stays behind the test for OSXSAVE, without which it is a fault.
unsigned xcr0() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Linux gives tiles to a process that asks for them; no other system is asked.
bool lets_use_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Asked once, for all threads.
bool has_amx() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0, features = 0, extensions = 0;
    __get_cpuid(1, &a, &b, &features, &d);
    __get_cpuid_count(7, 0, &a, &b, &c, &extensions);
    return amx_offered(features, extensions, xcr0, lets_use_tiles);
  }();
  return has;
}
#endif

// Fastest first. Tests every flag of the unit's row in CMakeLists.txt.
constexpr Unit kUnits[] = {
#ifdef EGG_HAVE_AMX
    {&amx::kernels, [] { return has_avx512vnni() && has_amx(); }},
#endif
#ifdef EGG_HAVE_AVX512VNNI
    {&avx512vnni::kernels, [] { return has_avx512vnni(); }},
#endif
#ifdef EGG_HAVE_AVXVNNI
    {&avxvnni::kernels, [] { return has_avxvnni() && has_avx2(); }},
#endif
#ifdef EGG_HAVE_AVX2
    {&avx2::kernels, [] { return has_avx2(); }},
#endif
#ifdef EGG_HAVE_NEON_I8MM
    {&neon_i8mm::kernels, [] { return has_i8mm() && has_dotprod(); }},
#endif
#ifdef EGG_HAVE_NEON_DOTPROD
    {&neon_dotprod::kernels, [] { return has_dotprod(); }},
#endif
#ifdef EGG_HAVE_NEON
    {&neon::kernels, [] { return true; }},  // part of the architecture
#endif
    {&generic::kernels, [] { return true; }},
};

}  // namespace

std::vector<std::string> usable_isas() { return usable(kUnits); }

const Kernels& kernels() {
  const char* wanted = std::getenv("EGGROLL_ISA");
  return chosen(kUnits, wanted ? wanted : "");
}

}  // namespace eggroll
