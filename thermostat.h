/* Network thermostat, exported by eggroll: C99, equal to the engine in every bit.
   thermostat_step runs one row. It needs no heap, no floats and no library. */
#ifndef THERMOSTAT_H
#define THERMOSTAT_H

#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define THERMOSTAT_MAYBE static inline __attribute__((unused))
#else
#define THERMOSTAT_MAYBE static inline
#endif

THERMOSTAT_MAYBE int8_t thermostat_clip(int32_t v) { return (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v); }

/* a / d, rounded down; d is above 0 */
THERMOSTAT_MAYBE int32_t thermostat_floor(int32_t a, int32_t d) { return a / d - (a % d < 0); }

/* W x of a matrix [O, K] */
THERMOSTAT_MAYBE int32_t thermostat_dot(const int8_t *w, const int8_t *x, int K) {
  int32_t sum = 0;
  for (int k = 0; k < K; ++k) sum += (int32_t)w[k] * x[k];
  return sum;
}

THERMOSTAT_MAYBE void thermostat_linear(const int8_t *w, const int8_t *x, int O, int K, int32_t d, int8_t *y) {
  for (int o = 0; o < O; ++o) y[o] = thermostat_clip(thermostat_floor(thermostat_dot(w + (int64_t)o * K, x, K), d));
}

THERMOSTAT_MAYBE void thermostat_norm(const int8_t *w, const int8_t *x, int K, int8_t *y) {
  int32_t sum = 0;
  for (int k = 0; k < K; ++k) sum += x[k] < 0 ? -x[k] : x[k];
  const int32_t mean = sum / K > 1 ? sum / K : 1;
  for (int k = 0; k < K; ++k) y[k] = thermostat_clip(thermostat_floor((int32_t)x[k] * w[k], mean));
}

/* sums [D] of the rows of E [count, D] that a list of indices names; -1 names none */
THERMOSTAT_MAYBE void thermostat_sum_up(const int8_t *E, const int32_t *index, int active, int D,
                          int16_t *sums) {
  for (int d = 0; d < D; ++d) sums[d] = 0;
  for (int i = 0; i < active; ++i) {
    if (index[i] < 0) continue;
    const int8_t *row = E + (int64_t)index[i] * D;
    for (int d = 0; d < D; ++d) sums[d] = (int16_t)(sums[d] + row[d]);
  }
}

/* sums plus a row of E, or less it where sign is -1 */
THERMOSTAT_MAYBE void thermostat_change(const int8_t *E, int32_t index, int sign, int D, int16_t *sums) {
  const int8_t *row = E + (int64_t)index * D;
  for (int d = 0; d < D; ++d) sums[d] = (int16_t)(sums[d] + sign * row[d]);
}

/* the sums of lists, shifted right and rounded down */
THERMOSTAT_MAYBE void thermostat_features(const int16_t *const *sums, int lists, int D, int shift, int8_t *y) {
  for (int l = 0; l < lists; ++l)
    for (int d = 0; d < D; ++d)
      y[l * D + d] = thermostat_clip(thermostat_floor(sums[l][d], (int32_t)1 << shift));
}

#define THERMOSTAT_INPUTS 2
#define THERMOSTAT_OUTPUT_SIZE 1

static const int8_t thermostat_leaf_layer0_weights[32] = {
  -98, 12, -78, 5, 1, -24, 106, -2, -5, 53, -38, -13, 15, 34, 32, -28, -15, -2, 30, -5, 98, -3, 21, 24,
  7, 23, 22, -1, 16, 48, -73, 10};

static const int8_t thermostat_leaf_layer0_bias[16] = {
  44, 27, -23, 29, -1, -37, 41, -19, -2, 5, 25, -12, -72, -20, 7, 50};

static const int8_t thermostat_leaf_layer1_weights[16] = {
  -57, -56, 27, 64, -45, -44, 17, -14, 4, 3, 46, 8, -36, 55, 41, -39};

static const int8_t thermostat_leaf_layer1_bias[1] = {
  8};

THERMOSTAT_MAYBE void thermostat_step(const int8_t *inputs, int8_t *out_output) {
  {
    int8_t r2[2];
    int8_t r3[16];
    int8_t r4[16];
    int8_t r5[16];
    int8_t r6[1];
    int8_t r7[1];
    for (int i = 0; i < 2; ++i) r2[i] = inputs[i] < -127 ? -127 : inputs[i];
    thermostat_linear(thermostat_leaf_layer0_weights, r2, 16, 2, 16, r3);
    for (int i = 0; i < 16; ++i) r4[i] = thermostat_clip(r3[i] + thermostat_leaf_layer0_bias[i]);
    for (int i = 0; i < 16; ++i) r5[i] = r4[i] > 0 ? r4[i] : 0;
    thermostat_linear(thermostat_leaf_layer1_weights, r5, 1, 16, 64, r6);
    for (int i = 0; i < 1; ++i) r7[i] = thermostat_clip(r6[i] + thermostat_leaf_layer1_bias[i]);
    memcpy(out_output, r7, 1);
  }
}

#endif  /* THERMOSTAT_H */
