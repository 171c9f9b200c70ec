// The operations of the language: one row each, of which kinds, names and checks are made. Their
// arithmetic is in Block::run.
#pragma once

#include <cstddef>

namespace eggroll {

// Name, inputs, form of the leaf, numbers of its own.
// clang-format off: one row a line
#define EGG_OPERATIONS(row)      \
  row(embed, 0, embedding, 0)    \
  row(linear, 1, matrix, 0)      \
  row(norm, 1, vector, 0)        \
  row(add, 2, none, 0)           \
  row(add_bias, 2, vector, 0)    \
  row(lookup, 1, none, 0)        \
  row(forget, 2, none, 0)        \
  row(mix, 3, none, 0)           \
  row(score, 1, matrix, 0)       \
  row(input, 0, none, 0)         \
  row(features, 0, embedding, 4) \
  row(bias, 1, vector, 0)        \
  row(relu, 1, none, 0)          \
  row(concat, 2, none, 0)        \
  row(output, 1, none, 1)        \
  row(sums, 1, matrix, 1)
// clang-format on

#define EGG_KIND(name, inputs, leaf, numbers) name,
enum class OpKind : int { EGG_OPERATIONS(EGG_KIND) };
#undef EGG_KIND

enum class LeafForm { none, embedding, matrix, vector };

// What an operation takes.
struct Form {
  const char* name;
  OpKind kind;
  size_t inputs;
  LeafForm leaf;
  size_t numbers;
};

#define EGG_FORM(name, inputs, leaf, numbers) \
  {#name, OpKind::name, inputs, LeafForm::leaf, numbers},
constexpr Form kForms[] = {EGG_OPERATIONS(EGG_FORM)};
#undef EGG_FORM

}  // namespace eggroll
