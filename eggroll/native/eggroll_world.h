/* A world: what the members of a population meet, in C or C++. docs/native.md has the guide.
 *
 * A member is one perturbed network. In every row it is shown `inputs` values and puts out
 * `outputs`; after the last row the world says what every row was worth. Functions are called from
 * several threads, those of one member by one thread at a time. They may write to the member's own
 * memory `mine` and to what they are given to fill, to nothing else, and throw nothing. */
#ifndef EGGROLL_WORLD_H
#define EGGROLL_WORLD_H

#include <stdint.h>

#define EGGROLL_WORLD_ABI 1

/* What observe answers. */
#define EGGROLL_IDLE 0   /* nothing is at stake: the row counts for nothing, act is not called */
#define EGGROLL_ROW 1    /* a row */
#define EGGROLL_BEGINS 2 /* a row, with which an episode begins: the network's state is zero */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct eggroll_world {
  int32_t abi;     /* EGGROLL_WORLD_ABI */
  int32_t inputs;  /* values of the network's input */
  int32_t outputs; /* values of the network's first output */
  int64_t bytes;   /* memory of a member */

  /* A new update; mine is zeroed and lies at a multiple of 64. key: random bits, the same for all
   * members of a group, so that they meet the same chance. */
  void (*begin)(const void* shared, void* mine, uint64_t key);

  /* Row 0, 1 and so on: fills inputs, int8 [inputs], which are zeroed, and says what the row is. */
  int32_t (*observe)(const void* shared, void* mine, int32_t row, int8_t* inputs);

  /* What the network puts out of the row: int8 [outputs], or int32 if it is of `sums`. */
  void (*act)(const void* shared, void* mine, int32_t row, const void* output);

  /* After the last row: what every row was worth, int32 [rows], which are zeroed; larger is
   * better. They are clipped to +-2^30. */
  void (*value)(const void* shared, void* mine, int32_t rows, int32_t* values);
} eggroll_world;

#ifdef __cplusplus
}
#define EGGROLL_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define EGGROLL_EXPORT extern __attribute__((visibility("default")))
#endif

/* EGGROLL_WORLD(name) = {EGGROLL_WORLD_ABI, inputs, outputs, bytes, begin, observe, act, value}; */
#define EGGROLL_WORLD(name)                \
  EGGROLL_EXPORT const eggroll_world name; \
  const eggroll_world name

#endif
