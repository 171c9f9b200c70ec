// Members in a hostile world, and the same world stepped for all members at once.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "maker.h"
#include "spec.h"
#include "stepper.h"

namespace fuzz {

// A world that answers and earns anything, by its key and what it was given.
struct Hostile {
  struct Mine {
    uint64_t word;
  };
  static int inputs, outputs, width;

  static uint64_t next(void* mine) {
    uint64_t& w = static_cast<Mine*>(mine)->word;
    return w = w * 6364136223846793005u + 1442695040888963407u;
  }
  static void begin(const void*, void* mine, uint64_t key) { static_cast<Mine*>(mine)->word = key; }
  static int32_t observe(const void*, void* mine, int32_t, int8_t* to) {
    for (int i = 0; i < inputs; ++i) to[i] = static_cast<int8_t>(next(mine) >> 40);
    uint64_t answer = next(mine) >> 33;
    return answer % 8 ? static_cast<int32_t>(answer % 3) : static_cast<int32_t>(answer);
  }
  static void act(const void*, void* mine, int32_t, const void* output) {
    for (int i = 0; i < outputs * width; ++i)
      static_cast<Mine*>(mine)->word += static_cast<const uint8_t*>(output)[i];
  }
  static void value(const void*, void* mine, int32_t rows, int32_t* to) {
    for (int t = 0; t < rows; ++t) to[t] = static_cast<int32_t>(next(mine) >> 32);
  }
};

inline int Hostile::inputs, Hostile::outputs, Hostile::width;

class PlayCase {
 public:
  PlayCase(Input& from, std::shared_ptr<Program> of)
      : in(from), make(from, in.draw(0, 2)), program(std::move(of)), plan(program->plan()) {
    Hostile::inputs = plan.inputs, Hostile::outputs = plan.outputs[0].size;
    Hostile::width = plan.outputs[0].wide ? 4 : 1;
    world = {EGGROLL_WORLD_ABI, plan.inputs,      Hostile::outputs, in.draw(8, 200),
             Hostile::begin,    Hostile::observe, Hostile::act,     Hostile::value};
    if (make.due()) spoil();
    int pairs = in.draw(1, 20);
    P = 2 * pairs, T = in.draw(1, in.one_in(8) ? 40 : 5), rank = 1 + in.one_in(3);
    prepare(pairs);
  }

  std::vector<mx::array> run() {
    Play played{null ? 0 : reinterpret_cast<uint64_t>(&world), 0, keys, rows, by};
    auto out = play(program, packed.of(program), *noise, state, played, signs, crediting, threads);
    if (!null && in.one_in(2)) step();
    return out;
  }

 private:
  void spoil() {
    switch (in.draw(0, 6)) {
      case 0:
        world.abi = in.hostile(1);
        break;
      case 1:
        world.inputs = in.hostile(world.inputs);
        break;
      case 2:
        world.outputs = in.hostile(world.outputs);
        break;
      case 3:
        world.bytes = in.one_in(2) ? INT64_MAX : INT64_MIN;
        break;
      case 4:
        null = true;
        break;
      case 5:
        world.act = nullptr;
        break;
      default:
        world.begin = nullptr;
    }
  }

  void prepare(int pairs) {
    int longest = 1;
    std::vector<mx::array> leaves;
    std::vector<int32_t> starts;
    for (int i = 0; i < plan.leaf_count; ++i) {
      const Leaf& leaf = plan.leaves[i];
      int length = leaf.cols ? rank * (leaf.rows + leaf.cols) : 2 * leaf.rows;
      longest = std::max(longest, length);
      for (int p = 0; p < pairs; ++p) starts.push_back(in.any(0, 30));
      leaves.push_back(
          make.bytes(leaf.cols ? mx::Shape{leaf.rows, leaf.cols} : mx::Shape{leaf.rows}));
    }
    packed.leaves = leaves;
    mx::array at = array_of(starts, {plan.leaf_count, pairs}, mx::int32);
    noise.emplace(Noise{make.table(longest + 30), at, make.number(rank), make.number(5)});
    state = make.bytes({P, plan.state_size});
    std::vector<uint64_t> drawn;
    for (int m = 0; m < P; ++m) drawn.push_back(uint64_t{in.word()} << 32 | in.word());
    keys = array_of(drawn, {P}, mx::uint64);
    if (make.due()) keys = make.words({P});
    rows = make.number(T), threads = make.number(in.draw(0, 3));
    if (rows > 64 && rows != T && int64_t{rows} * P < int64_t{1} << 31) rows = 64;
    by = std::ldexp(in.draw(-200, 200), in.draw(0, 30) - 10);
    if (make.due()) by = in.one_in(2) ? std::nan("") : std::numeric_limits<double>::infinity();
    if (rank == 1 && in.one_in(2)) credit();
  }

  void credit() {
    Crediting c{1 + in.one_in(2), {}, {}, {}, {}, in.draw(0, 6), in.draw(0, 8)};
    for (int i = 0; i < plan.leaf_count; ++i) {
      const Leaf& leaf = plan.leaves[i];
      c.shifts.push_back(in.one_in(5) ? kSilent : in.draw(0, 8));
      c.kinds.push_back(static_cast<int>(leaf.cols ? CreditKind::inputs : CreditKind::scalar));
      c.owners.push_back(i), c.discounts.push_back(in.draw(0, 15));
    }
    crediting = c;
    signs = make.whole({plan.leaf_count, P / 2, (T + 31) / 32}, INT32_MIN, INT32_MAX);
  }

  // The same world for engines that do not play themselves.
  void step() {
    if (world.bytes > 1 << 20) return;
    std::vector<uint64_t> begun(static_cast<size_t>(P), 7);
    WorldStepper stepper(&world, nullptr, begun.data(), P, threads);
    std::vector<int8_t> shown(static_cast<size_t>(P * world.inputs));
    std::vector<uint8_t> flags(static_cast<size_t>(P));
    std::vector<char> given(static_cast<size_t>(P * world.outputs * Hostile::width));
    std::vector<int32_t> worth(static_cast<size_t>(P * 3));
    for (int t = 0; t < 3; ++t) {
      stepper.observe(t, shown.data(), flags.data());
      stepper.act(t, given.data(), int64_t{world.outputs} * Hostile::width, flags.data());
    }
    stepper.value(3, worth.data());
  }

  Input& in;
  Maker make;
  std::shared_ptr<Program> program;
  const Plan& plan;
  eggroll_world world;
  bool null = false;
  int P, T, rank, rows, threads;
  double by;
  Packing packed;
  mx::array state = mx::array(0), keys = mx::array(0);
  std::optional<Noise> noise;
  std::optional<mx::array> signs;
  std::optional<Crediting> crediting;
};

}  // namespace fuzz
