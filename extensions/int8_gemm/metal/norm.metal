// y_i = clip((x_i w'_i) // max(1, sum|x| // D)). One simdgroup per pair.

namespace egg {

// clip(floor(v / mean)) for mean in 1..127, by a reciprocal in 22 bits: the numerator is below
// 256 mean <= 32512 and the reciprocal too large by less than mean / 2^22, so the quotient is
// exact.
EGG_FUNCTION int over_mean(int v, int mean, uint reciprocal) {
  const int numerator = clamp(v, -128 * mean, 128 * mean - 1) + 128 * mean;
  return clip(int((uint(numerator) * reciprocal) >> 22) - 128);
}

EGG_FUNCTION uint reciprocal_of(int mean) { return ((1u << 22) + uint(mean) - 1) / uint(mean); }

template <int D, typename Out, typename In>
EGG_FUNCTION void norm(Out y, In x, const device int8_t* w, Noise noise, uint leaf, uint member,
                       Lane lane) {
  int even = 0, odd = 0;
  for (uint k = lane.index; k < D; k += 32) {
    const char2 v = get(x, k, member);
    even += abs(int(v.x));
    odd += abs(int(v.y));
  }
  const int even_mean = max(simd_sum(even) / D, 1), odd_mean = max(simd_sum(odd) / D, 1);
  const uint even_reciprocal = reciprocal_of(even_mean), odd_reciprocal = reciprocal_of(odd_mean);
  for (uint k = lane.index; k < D; k += 32) {
    const char2 v = get(x, k, member);
    const int2 scale = perturbed(w, noise, leaf, member, k);
    put(y, k, member,
        both(over_mean(int(v.x) * scale.x, even_mean, even_reciprocal),
             over_mean(int(v.y) * scale.y, odd_mean, odd_reciprocal)));
  }
}

}  // namespace egg
