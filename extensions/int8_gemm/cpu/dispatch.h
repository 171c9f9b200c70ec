// One dispatch for instruction sets: built and detected, fastest first, EGGROLL_ISA overrides.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan.h"

namespace eggroll {

// Names of the instruction sets that are built and that run on this processor and system, fastest
// first.
std::vector<std::string> usable_isas();

// The kernels in use: EGGROLL_ISA's, else the fastest. Throws std::invalid_argument for an
// EGGROLL_ISA that is not usable here.
const Kernels& kernels();

// ---- the choice, apart from the processor it is made on, so that tests can play any -------------

// An instruction set that is built, and whether it runs on this processor and system.
struct Unit {
  const Kernels* kernels;
  bool (*runs)();
};

// Names of those that run, in their order.
inline std::vector<std::string> usable(std::span<const Unit> units) {
  std::vector<std::string> names;
  for (const Unit& unit : units)
    if (unit.runs()) names.emplace_back(unit.kernels->name);
  return names;
}

// The one of this name or, without a name, the first that runs. Those before it are looked at only
// without a name: the system is not asked for tiles that nobody wants. Throws
// std::invalid_argument if it does not run.
inline const Kernels& chosen(std::span<const Unit> units, const std::string& name) {
  for (const Unit& unit : units)
    if ((name.empty() || name == unit.kernels->name) && unit.runs()) return *unit.kernels;
  std::string names;
  for (const std::string& other : usable(units)) names += (names.empty() ? "" : ", ") + other;
  throw std::invalid_argument("EGGROLL_ISA is '" + name +
                              "', which this build on this processor and system cannot run; "
                              "usable: " +
                              names + ".");
}

// Whether AMX can be used: the processor has tiles of bytes, by CPUID.1:ECX and CPUID.7.0:EDX, the
// system keeps them, by XCR0, and it lets this process use them, once asked. XCR0 can be read only
// where the system has OSXSAVE.
template <typename Xcr0, typename Ask>
bool amx_offered(unsigned features, unsigned extensions, Xcr0 xcr0, Ask ask) {
  constexpr unsigned kOsXsave = 1u << 27, kTile = 1u << 24, kInt8 = 1u << 25, kState = 3u << 17;
  return features & kOsXsave && extensions & kTile && extensions & kInt8 &&
         (xcr0() & kState) == kState && ask();
}

}  // namespace eggroll
