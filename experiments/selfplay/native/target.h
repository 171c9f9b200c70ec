// SELFPLAY_TARGET("avx2") and SELFPLAY_TARGET_END stand around what is compiled for an instruction
// set. Headers of the system come first: their functions must run on any processor.
#pragma once

#define SELFPLAY_PRAGMA(words) _Pragma(#words)
#if defined(__clang__)
#define SELFPLAY_TARGET(set) \
  SELFPLAY_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define SELFPLAY_TARGET_END _Pragma("clang attribute pop")
#else
#define SELFPLAY_TARGET(set) SELFPLAY_PRAGMA(GCC push_options) SELFPLAY_PRAGMA(GCC target(set))
#define SELFPLAY_TARGET_END _Pragma("GCC pop_options")
#endif
