// Python module eggroll._int8_gemm.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "checks.h"
#include "dispatch.h"
#include "engine.h"
#include "machine.h"
#include "mlx/allocator.h"
#include "mlx/version.h"
#include "rules.h"
#include "stepper.h"

namespace mx = mlx::core;
namespace nb = nanobind;
using namespace nb::literals;

namespace {

nb::str version(int major, int minor, int patch) {
  return nb::str("{}.{}.{}").format(major, minor, patch);
}

nb::dict built_with() {
  nb::dict versions;
  versions["mlx"] = version(MLX_VERSION_MAJOR, MLX_VERSION_MINOR, MLX_VERSION_PATCH);
  versions["nanobind"] = version(NB_VERSION_MAJOR, NB_VERSION_MINOR, NB_VERSION_PATCH);
  return versions;
}

template <typename T, int axes>
using Array = nb::ndarray<T, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;

void check(bool ok) { eggroll::require(ok, "an array does not fit the world's members"); }

// Worlds stepped for all members between calls of an engine.
void add_stepper(nb::module_& m) {
  using eggroll::WorldStepper;
  using Free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<WorldStepper>(m, "Worlds", "The worlds of all members, begun; see eggroll_world.h.")
      .def(
          "__init__",
          [](WorldStepper* self, uint64_t world, uint64_t shared, Array<const uint64_t, 1> keys,
             int threads) {
            new (self) WorldStepper(reinterpret_cast<const eggroll_world*>(world),
                                    reinterpret_cast<const void*>(shared), keys.data(),
                                    static_cast<int64_t>(keys.shape(0)), threads);
          },
          "world"_a, "shared"_a, "keys"_a, "threads"_a, Free())
      .def(
          "observe",
          [](const WorldStepper& self, int row, Array<int8_t, 2> inputs, Array<uint8_t, 1> flags) {
            check(static_cast<int64_t>(inputs.shape(0)) == self.members() &&
                  static_cast<int>(inputs.shape(1)) == self.inputs() &&
                  flags.shape(0) == inputs.shape(0));
            eggroll::require(row >= 0, "rows count from 0");
            self.observe(row, inputs.data(), flags.data());
          },
          "row"_a, "inputs"_a, "flags"_a, Free(), "Fills inputs [P, n] and flags [P].")
      .def(
          "act",
          [](const WorldStepper& self, int row, Array<const uint8_t, 2> outputs,
             Array<const uint8_t, 1> flags) {
            size_t given = outputs.shape(1), size = static_cast<size_t>(self.outputs());
            check(static_cast<int64_t>(outputs.shape(0)) == self.members() &&
                  flags.shape(0) == outputs.shape(0) && (given == size || given == 4 * size));
            eggroll::require(row >= 0, "rows count from 0");
            self.act(row, reinterpret_cast<const char*>(outputs.data()),
                     static_cast<int64_t>(outputs.shape(1)), flags.data());
          },
          "row"_a, "outputs"_a, "flags"_a, Free(), "outputs: bytes [P, size].")
      .def(
          "value",
          [](const WorldStepper& self, Array<int32_t, 2> values) {
            check(static_cast<int64_t>(values.shape(0)) == self.members() &&
                  values.size() < size_t{1} << 31);
            self.value(static_cast<int32_t>(values.shape(1)), values.data());
          },
          "values"_a, Free(), "Fills values [P, T].");
}

// ---- NumPy's memory as an MLX array -------------------------------------------------------------

using NumpyArray = nb::ndarray<nb::ro, nb::device::cpu>;

// Gives up what was kept alive, on whichever thread MLX is done with it. A reference that outlives
// the interpreter is leaked.
void release(PyObject* owner) {
  if (!Py_IsInitialized() || !nb::is_alive()) return;
  nb::gil_scoped_acquire gil;
  Py_DECREF(owner);
}

bool contiguous(const NumpyArray& a) {
  int64_t stride = 1;
  for (size_t i = a.ndim(); a.size() && i-- > 0; stride *= static_cast<int64_t>(a.shape(i)))
    if (a.shape(i) != 1 && a.stride(i) != stride) return false;
  return true;
}

// An array over the memory of a C-contiguous int8 or int32 array of NumPy, which it keeps alive:
// what is written there later is seen by what is computed later. Where MLX's allocator has no place
// for foreign memory, it is a copy. Throws std::invalid_argument for any other array.
mx::array view(const nb::object& given) {
  NumpyArray a;
  eggroll::require(nb::ndarray_check(given) && nb::try_cast(given, a),
                   "view: an array of NumPy is needed");
  bool bytes = a.dtype() == nb::dtype<int8_t>();
  eggroll::require(bytes || a.dtype() == nb::dtype<int32_t>(), "view: int8 or int32 is needed");
  eggroll::require(contiguous(a), "view: a C-contiguous array is needed");
  eggroll::require(a.size() < size_t{1} << 31,
                   "view: an array of fewer than 2^31 values is needed");
  mx::Shape shape;
  for (size_t i = 0; i < a.ndim(); ++i) shape.push_back(static_cast<int>(a.shape(i)));
  mx::Dtype dtype = bytes ? mx::int8 : mx::int32;
  void* data = const_cast<void*>(a.data());
  PyObject* owner = given.inc_ref().ptr();
  const ptrdiff_t before = eggroll::header();
  // This MLX never reuses, resizes or caches a buffer that is not its own, so of its allocator's
  // header only the place counts.
  if (before >= 0 && a.size()) {
    mx::allocator::Buffer buffer(static_cast<char*>(data) - before);
    auto deleter = [owner](mx::allocator::Buffer) { release(owner); };
    return mx::array(mx::allocator::Data(buffer, deleter), shape, dtype);
  }
  return mx::array(data, shape, dtype, [owner](void*) { release(owner); });
}

// ---- update rules -------------------------------------------------------------------------------

// Votes, weights, fine copy, mean, size, feedback and decay.
using AdamInputs = std::tuple<mx::array, mx::array, mx::array, mx::array, mx::array,
                              std::optional<mx::array>, int64_t>;

mx::array room_for(const mx::array& given) { return eggroll::made(given.shape(), given.dtype()); }

// Makes the arrays of a leaf of a rule ready: its weights, and all others.
void prepare(const std::string& rule, mx::array& weights, const std::vector<mx::array*>& others) {
  weights = eggroll::ready(weights, mx::int8, (rule + ": weights").c_str());
  for (mx::array* a : others) *a = eggroll::ready(*a, mx::int32, (rule + ": an array").c_str());
}

// New weights, fine copy, mean, size and, if there is one, feedback of every leaf; and how many
// weights moved.
std::pair<std::vector<std::vector<mx::array>>, int64_t> adam(std::vector<AdamInputs> leaves,
                                                             int64_t factor, int threads) {
  eggroll::in_range("adam: factor", factor, 0, 64 << 16);
  eggroll::check_threads(threads);
  std::vector<std::vector<mx::array>> made;
  std::vector<eggroll::AdamLeaf> work;
  for (auto& [votes, weights, fine, mean, size, feedback, decay] : leaves) {
    std::vector<mx::array*> others{&votes, &fine, &mean, &size};
    if (feedback) others.push_back(&*feedback);
    prepare("adam", weights, others);
    const size_t n = weights.size();
    for (const mx::array* other : others)
      eggroll::require(other->size() == n && n < size_t{1} << 31,
                       "adam: the arrays of a leaf have its size");
    eggroll::in_range("adam: decay", decay, 0, 1 << 24);
    std::vector<mx::array> out{room_for(weights), room_for(fine), room_for(mean), room_for(size)};
    if (feedback) out.push_back(room_for(*feedback));
    work.push_back({{weights.data<int8_t>(), fine.data<int32_t>(), mean.data<int32_t>(),
                     size.data<int32_t>(), feedback ? feedback->data<int32_t>() : nullptr},
                    {out[0].data<int8_t>(), out[1].data<int32_t>(), out[2].data<int32_t>(),
                     out[3].data<int32_t>(), feedback ? out[4].data<int32_t>() : nullptr},
                    votes.data<int32_t>(),
                    static_cast<int64_t>(n),
                    decay});
    made.push_back(std::move(out));
  }
  return {std::move(made), eggroll::adam(work, factor, threads)};
}

// Votes, weights, fine copy, factor and decay.
using MasterInputs = std::tuple<mx::array, mx::array, mx::array, int64_t, int64_t>;

// New weights and fine copy of every leaf, and how many weights moved.
std::pair<std::vector<std::vector<mx::array>>, int64_t> master(std::vector<MasterInputs> leaves,
                                                               int threads) {
  eggroll::check_threads(threads);
  std::vector<std::vector<mx::array>> made;
  std::vector<eggroll::MasterLeaf> work;
  for (auto& [votes, weights, fine, factor, decay] : leaves) {
    prepare("master", weights, {&votes, &fine});
    const size_t n = weights.size();
    eggroll::require(votes.size() == n && fine.size() == n && n < size_t{1} << 31,
                     "master: the arrays of a leaf have its size");
    eggroll::in_range("master: factor", factor, 0, int64_t{1} << 62);
    eggroll::in_range("master: decay", decay, 0, 1 << 24);
    std::vector<mx::array> out{room_for(weights), room_for(fine)};
    work.push_back({votes.data<int32_t>(), weights.data<int8_t>(), fine.data<int32_t>(),
                    out[0].data<int8_t>(), out[1].data<int32_t>(), static_cast<int64_t>(n), factor,
                    decay});
    made.push_back(std::move(out));
  }
  return {std::move(made), eggroll::add_votes(work, threads)};
}

// Votes, weights, and the least votes that move one up and, of the other sign, down.
using SignInputs = std::tuple<mx::array, mx::array, int64_t, int64_t>;

// New weights of every leaf, and how many moved.
std::pair<std::vector<mx::array>, int64_t> sign(std::vector<SignInputs> leaves, int threads) {
  constexpr int64_t kMost = INT32_MAX, kLeast = INT32_MIN;
  eggroll::check_threads(threads);
  std::vector<mx::array> made;
  std::vector<eggroll::SignLeaf> work;
  for (auto& [votes, weights, up, down] : leaves) {
    prepare("sign", weights, {&votes});
    const size_t n = votes.size();
    eggroll::require(weights.size() == n && n < size_t{1} << 31,
                     "sign: the arrays of a leaf have its size");
    eggroll::in_range("sign: up", up, 1, int64_t{1} << 62);
    eggroll::in_range("sign: down", down, 0, int64_t{1} << 62);
    made.push_back(room_for(weights));
    work.push_back({votes.data<int32_t>(), weights.data<int8_t>(), made.back().data<int8_t>(),
                    static_cast<int64_t>(n), static_cast<int32_t>(std::min(up - 1, kMost)),
                    static_cast<int32_t>(std::max(1 - down, kLeast))});
  }
  return {std::move(made), eggroll::move_by_sign(work, threads)};
}

// Votes, weights, fine copy, feedback, whitening matrices, lr and floor.
using WhiteningInputs = std::tuple<mx::array, mx::array, mx::array, std::optional<mx::array>,
                                   std::optional<mx::array>, double, double>;

// New weights, fine copy and, where there are any, feedback and learnt matrices of every leaf; and
// how many weights moved.
std::pair<std::vector<std::vector<mx::array>>, int64_t> whiten(std::vector<WhiteningInputs> leaves,
                                                               bool learns, int threads) {
  eggroll::check_threads(threads);
  std::vector<std::vector<mx::array>> made;
  std::vector<std::vector<int16_t>> turned(leaves.size());
  std::vector<eggroll::WhitenedLeaf> work;
  for (auto& [votes, weights, fine, feedback, matrices, factor, floor] : leaves) {
    std::vector<mx::array*> others{&votes, &fine};
    if (feedback) others.push_back(&*feedback);
    prepare("whitened", weights, others);
    const int64_t n = static_cast<int64_t>(weights.size());
    const int64_t inputs = votes.ndim() ? votes.shape(-1) : 0;
    for (const mx::array* other : others)
      eggroll::require(static_cast<int64_t>(other->size()) == n && n > 0 && n < int64_t{1} << 31,
                       "whitened: the arrays of a leaf have its size");
    eggroll::require(inputs > 0, "whitened: votes are [.., inputs], not a number");
    eggroll::require(factor >= 0 && factor <= 64 << 24, "whitened: factor is in 0..2^30");
    eggroll::require(floor >= 1 && floor < 1ll << 40, "whitened: floor is in 1..2^40");
    int64_t size = inputs;
    if (matrices) {
      matrices = eggroll::ready(*matrices, mx::int32, "whitened: matrices");
      eggroll::require(matrices->ndim() == 3, "whitened: matrices are [blocks, size, size]");
      size = matrices->shape(2);
      eggroll::require(matrices->shape(1) == size && size <= eggroll::kWhitenedInputs && size > 0 &&
                           (inputs + size - 1) / size == matrices->shape(0),
                       "whitened: matrices cover a leaf's inputs");
    }
    std::vector<mx::array> out{room_for(weights), room_for(fine)};
    eggroll::WhitenedLeaf leaf{votes.data<int32_t>(),
                               weights.data<int8_t>(),
                               fine.data<int32_t>(),
                               nullptr,
                               {out[0].data<int8_t>(), out[1].data<int32_t>(), nullptr},
                               n / inputs,
                               inputs,
                               size,
                               factor,
                               floor,
                               nullptr,
                               nullptr,
                               nullptr};
    if (feedback) {
      out.push_back(room_for(*feedback));
      leaf.feedback = feedback->data<int32_t>(), leaf.to.feedback = out.back().data<int32_t>();
    }
    if (matrices) leaf.before = matrices->data<int32_t>();
    if (matrices && learns) {
      out.push_back(room_for(*matrices));
      leaf.after = out.back().data<int32_t>();
      auto& room = turned[work.size()];
      room.resize(static_cast<size_t>(n));
      leaf.turned = room.data();
    }
    work.push_back(leaf);
    made.push_back(std::move(out));
  }
  return {std::move(made), eggroll::whiten(work, threads)};
}

}  // namespace

NB_MODULE(_int8_gemm, m) {
  m.doc() = "int8 matrix products and the network interpreter of eggroll.";
  m.def("built_with", &built_with,
        "Versions of mlx and nanobind whose headers this module was compiled with.");
  m.def(
      "isa", [] { return std::string(eggroll::kernels().name); },
      "The instruction set in use: EGGROLL_ISA's, else the fastest usable.");
  m.def("usable_isas", &eggroll::usable_isas, "Built and detected, fastest first.");
  m.def("peak", &eggroll::peak, nb::call_guard<nb::gil_scoped_release>(), "threads"_a,
        "Multiply-adds per second of the instruction set's dot product on registers alone.");
  m.def("cache_bytes", &eggroll::cache_bytes, "A core's second-level cache, bytes.");
  m.def(
      "blocks",
      [] { return std::pair(eggroll::Blocks::all().used(), eggroll::Blocks::all().kept()); },
      "Bytes of large arrays in use, and of those whose memory is kept for the next.");
  m.def("default_threads", &eggroll::default_threads, "Cores this process may run on.");
  m.def("operations", &eggroll::operations, "Names of the operations that the kernels have.");
  m.def(
      "last_words", &eggroll::last_words, "sentence"_a,
      "What this process says, with exit code 2, if a fault or an abort ends it; empty: nothing.");
  m.attr("max_registers") = eggroll::kRegisters;
  m.attr("max_operations") = eggroll::kOps;
  m.attr("max_size") = eggroll::kSize;
  nb::class_<eggroll::Program>(m, "Program",
                               "A declared program, checked, with its packing layout.")
      .def(nb::init<const std::vector<eggroll::StageSpec>&, const std::vector<eggroll::LeafSpec>&,
                    int, int, int, const std::vector<std::vector<int>>&,
                    const std::vector<uint32_t>&, const std::vector<uint64_t>&, int, int,
                    const std::vector<eggroll::OutputSpec>&>(),
           "stages"_a, "leaves"_a, "width"_a, "vocabulary"_a, "state_size"_a, "tables"_a,
           "exp2_mantissas"_a, "log2_breakpoints"_a, "inputs"_a, "indices"_a, "outputs"_a)
      .def(
          "pack",
          [](std::shared_ptr<eggroll::Program> self, const std::vector<mx::array>& leaves) {
            return eggroll::Packed(std::move(self), leaves);
          },
          nb::call_guard<nb::gil_scoped_release>(), "leaves"_a,
          "int8 leaves in declared order -> weights in the kernels' layout.");
  nb::class_<eggroll::Packed>(m, "Packed", "Weights for the kernels alone.");
  nb::class_<eggroll::Noise>(m, "Noise", "Slices of the table; starts None: no noise.")
      .def(
          "__init__",
          [](eggroll::Noise* self, const mx::array& table, std::optional<mx::array> starts,
             int rank,
             int shift) { new (self) eggroll::Noise{table, std::move(starts), rank, shift}; },
          "table"_a, "starts"_a.none(), "rank"_a, "shift"_a);
  nb::class_<eggroll::Crediting>(m, "Crediting", "How token credit works on each leaf.")
      .def(
          "__init__",
          [](eggroll::Crediting* self, int mode, std::vector<int> shifts, std::vector<int> kinds,
             std::vector<int> owners, std::vector<int> discounts, int credit_shift, int unit_shift,
             int group) {
            new (self) eggroll::Crediting{mode,      shifts,       kinds,      owners,
                                          discounts, credit_shift, unit_shift, group};
          },
          "mode"_a, "shifts"_a, "kinds"_a, "owners"_a, "discounts"_a, "credit_shift"_a,
          "unit_shift"_a, "group"_a);
  // Without the GIL, so that other threads of Python go on.
  m.def("evaluate", &eggroll::evaluate, nb::call_guard<nb::gil_scoped_release>(), "program"_a,
        "packed"_a, "noise"_a, "tokens"_a, "targets"_a, "state"_a, "rows"_a, "threads"_a,
        "block_tokens"_a, "State int8 [P, state_size] and scores int16 [P, T].");
  m.def("outputs", &eggroll::outputs, nb::call_guard<nb::gil_scoped_release>(), "program"_a,
        "packed"_a, "noise"_a, "tokens"_a, "state"_a, "rows"_a, "signs"_a.none(),
        "crediting"_a.none(), "threads"_a, "block_tokens"_a,
        "State and every output, int8 or int32 [P, T, size].");
  m.def("logits", &eggroll::logits, nb::call_guard<nb::gil_scoped_release>(), "program"_a,
        "packed"_a, "tokens"_a, "state"_a, "rows"_a, "threads"_a, "block_tokens"_a,
        "State and logits int8 [P, T, V] of the unperturbed model.");
  m.def("likelihoods", &eggroll::likelihoods, nb::call_guard<nb::gil_scoped_release>(), "program"_a,
        "packed"_a, "tokens"_a, "targets"_a, "state"_a, "rows"_a, "threads"_a, "block_tokens"_a,
        "State, totals uint64 [P, T] and hits int8 [P, T] of the unperturbed model.");
  m.def("credit", &eggroll::credit, nb::call_guard<nb::gil_scoped_release>(), "program"_a,
        "packed"_a, "noise"_a, "signs"_a, "draws"_a, "crediting"_a, "tokens"_a, "targets"_a,
        "state"_a, "rows"_a, "values"_a.none(), "threads"_a, "block_tokens"_a,
        "State, scores and Z int32 of every leaf.");
  m.def(
      "play",
      [](std::shared_ptr<eggroll::Program> program, const eggroll::Packed& packed,
         const eggroll::Noise& noise, const mx::array& state, uint64_t world, uint64_t shared,
         const mx::array& keys, int rows, double by, const std::optional<mx::array>& signs,
         const std::optional<eggroll::Crediting>& crediting, int threads) {
        return eggroll::play(std::move(program), packed, noise, state,
                             {world, shared, keys, rows, by}, signs, crediting, threads);
      },
      nb::call_guard<nb::gil_scoped_release>(), "program"_a, "packed"_a, "noise"_a, "state"_a,
      "world"_a, "shared"_a, "keys"_a, "rows"_a, "by"_a, "signs"_a.none(), "crediting"_a.none(),
      "threads"_a,
      "State, values [P, rows], active [P, rows] and, with crediting, Z of every leaf.");
  nb::class_<eggroll::Targets>(m, "Targets", "Targets of all outputs, and the loss of each.")
      .def(
          "__init__",
          [](eggroll::Targets* self, std::vector<int> losses, const mx::array& values) {
            new (self) eggroll::Targets{std::move(losses), values};
          },
          "losses"_a, "values"_a);
  m.def("learn", &eggroll::learn, nb::call_guard<nb::gil_scoped_release>(), "program"_a, "packed"_a,
        "tokens"_a, "targets"_a, "state"_a, "rows"_a, "index"_a.none(), "words"_a, "scales"_a,
        "back"_a, "errors"_a.none(), "of_outputs"_a.none(), "threads"_a,
        "State, scores, sums of |credit| int64 [leaves], with targets of outputs errors and what "
        "rows lost, and Z of every leaf.");
  add_stepper(m);
  m.def("sign", &sign, nb::call_guard<nb::gil_scoped_release>(), "leaves"_a, "threads"_a,
        "Of leaves (votes, weights, up, down): weights moved by one, up from `up` votes on and "
        "down from -`down` on, anew for every leaf; and how many moved.");
  m.def("adam", &adam, nb::call_guard<nb::gil_scoped_release>(), "leaves"_a, "factor"_a,
        "threads"_a,
        "Of leaves (votes, weights, fine, mean, size, feedback or None, decay): those after votes "
        "anew, without None, for every leaf; and how many weights moved.");
  m.def("master", &master, nb::call_guard<nb::gil_scoped_release>(), "leaves"_a, "threads"_a,
        "Of leaves (votes, weights, fine, factor, decay): weights and fine copy after votes, for "
        "every leaf; and how many weights moved.");
  m.def("whitened", &whiten, nb::call_guard<nb::gil_scoped_release>(), "leaves"_a, "learns"_a,
        "threads"_a,
        "Of leaves (votes, weights, fine, feedback or None, matrices or None, factor, floor): "
        "weights, fine copy, feedback and, if they learn, matrices after votes anew, without None, "
        "for every leaf; and how many weights moved.");
  m.def("draws", &eggroll::draws, nb::call_guard<nb::gil_scoped_release>(), "streams"_a, "rooms"_a,
        "first"_a, "shape"_a, "threads"_a, "is_unsigned"_a = false,
        "int32 or uint32 [shape], numbers below every stream's room; see engine.h.");
  m.def("view", &view, "array"_a.none(),
        "An MLX array over a C-contiguous int8 or int32 array of NumPy, whose memory it shares.");
  m.def("pair_signs", &eggroll::pair_signs, nb::call_guard<nb::gil_scoped_release>(), "scores"_a,
        "int16 [P, T] -> int8 [P/2], the sign of each pair's difference of sums.");
  m.def("rated_sums", &eggroll::rated_sums, nb::call_guard<nb::gil_scoped_release>(), "errors"_a,
        "lost"_a,
        "The sum of |errors|, and of uint64 [.., outputs] by output those of upper and lower "
        "halves.");
  m.def("rounded", &eggroll::rounded, nb::call_guard<nb::gil_scoped_release>(), "fine"_a,
        "int32 with 16 fraction bits -> int8.");
  m.def("votes", &eggroll::votes, nb::call_guard<nb::gil_scoped_release>(), "program"_a,
        "fitness"_a, "table"_a, "starts"_a, "rank"_a, "signs"_a, "threads"_a,
        "Z int32 of every leaf.");
}
