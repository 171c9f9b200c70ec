#include "thermostat.h" /* the network, as Model.export writes it */

#include <math.h>
#include <stdio.h>

static int8_t row(double x) { return (int8_t)fmax(-127, fmin(127, rint(x))); }

int main(void) {
  double room = 12, outside = 4; /* degrees */
  for (int minute = 0; minute <= 120; ++minute) {
    const int8_t seen[2] = {row(16 * (20 - room)), row(4 * outside)};
    int8_t heat;
    thermostat_step(seen, &heat);
    if (minute % 30 == 0) printf("minute %3d: %.2f degrees\n", minute, room);
    room += 0.01 * (outside - room) + 0.002 * (heat + 127);
  }
  return 0;
}
