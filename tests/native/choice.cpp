// How an instruction set is chosen (dispatch.h), on processors and systems of our own: one that
// lacks a bit, and one that refuses.

#include "dispatch.h"

#include <iostream>

#include "expect.h"

using namespace eggroll;

namespace {

// ---- the offer of tiles ----------------------------------------------------------------------

// What a machine with AMX says, and how often it is asked. Bits as Intel numbers them.
struct Machine {
  unsigned features = 1u << 27, extensions = 1u << 24 | 1u << 25, kept = 1u << 17 | 1u << 18;
  bool lets = true;
  int reads = 0, asks = 0;

  bool offered() {
    auto xcr0 = [this] { return ++reads, kept; };
    auto ask = [this] { return ++asks, lets; };
    return amx_offered(features, extensions, xcr0, ask);
  }
};

void expect_refused(Machine machine, int reads, int asks, const std::string& what) {
  expect(!machine.offered(), "offered without " + what);
  expect(machine.reads == reads && machine.asks == asks, "asked without " + what);
}

void offers() {
  Machine whole;
  expect(whole.offered() && whole.reads == 1 && whole.asks == 1, "not offered, or asked twice");
  // All other bits are set, so that none stands in for another.
  expect_refused({~(1u << 27), ~0u, ~0u}, 0, 0, "OSXSAVE");
  expect_refused({~0u, ~(1u << 24), ~0u}, 0, 0, "AMX-TILE");
  expect_refused({~0u, ~(1u << 25), ~0u}, 0, 0, "AMX-INT8");
  expect_refused({~0u, ~0u, ~(1u << 17)}, 1, 0, "the tiles' configuration in XCR0");
  expect_refused({~0u, ~0u, ~(1u << 18)}, 1, 0, "the tiles' data in XCR0");
  expect_refused({~0u, ~0u, ~0u, false}, 1, 1, "permission");
}

// ---- the choice ------------------------------------------------------------------------------

int asked = 0;  // whether tiles may be used

Kernels named(const char* name) {
  Kernels kernels{};
  kernels.name = name;
  return kernels;
}

const Kernels amx = named("amx"), avx2 = named("avx2"), generic = named("generic");
const Unit kUnits[] = {
    {&amx, [] { return ++asked, false; }},
    {&avx2, [] { return true; }},
    {&generic, [] { return true; }},
};

std::string chosen_name(const std::string& name) {
  try {
    return chosen(kUnits, name).name;
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

void choices() {
  auto refused = [](const std::string& name) {
    return "EGGROLL_ISA is '" + name +
           "', which this build on this processor and system cannot run; usable: avx2, generic.";
  };
  expect(chosen_name("generic") == "generic" && chosen_name("avx2") == "avx2", "a name");
  expect(asked == 0, "tiles are asked for although another set is named");
  expect(chosen_name("") == "avx2" && asked == 1, "the first that runs");
  for (const char* name : {"amx", "mmx", "avx", "generic "})
    expect(chosen_name(name) == refused(name), std::string("what is said of ") + name);
  expect(usable(kUnits) == std::vector<std::string>{"avx2", "generic"}, "those that run");
}

}  // namespace

int main() {
  offers();
  choices();
  std::cout << failures << " wrong\n";
  return failures ? 1 : 0;
}
