// A column panel of a matrix, 16 floats wide, read over and over, as a product by panels does for
// every few rows of its other factor. Where rows are a multiple of 4,096 bytes apart, all of a
// panel falls on one set of the first cache, which holds 8 or 12 lines, and is fetched anew each
// time.
#include <stdint.h>

#include "eggroll_world.h"

typedef float Four __attribute__((vector_size(16)));

// sums [16] += the panel's rows, `times` over; rows are `apart` floats apart, at cache lines.
EGGROLL_EXPORT void read_panel(int32_t rows, int64_t apart, int32_t times, const float* panel,
                               float* sums) {
  Four a = {}, b = {}, c = {}, d = {};
  for (int32_t t = 0; t < times; ++t)
    for (int32_t i = 0; i < rows; ++i) {
      const Four* line = reinterpret_cast<const Four*>(panel + i * apart);
      a += line[0];
      b += line[1];
      c += line[2];
      d += line[3];
    }
  Four* to = reinterpret_cast<Four*>(sums);
  to[0] += a;
  to[1] += b;
  to[2] += c;
  to[3] += d;
}
