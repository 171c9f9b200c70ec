// The tape that a stage leaves for token credit: the inputs of its matrices, and x B where weights
// have noise. Of member 2p of every pair.

namespace egg {

// The inputs of a token, [K][M / 2 pairs].
template <int K, typename Register>
EGG_FUNCTION void keep(device int8_t* tape, Register x, Lane lane) {
  device char4* to = reinterpret_cast<device char4*>(tape);
  for (uint i = lane.in_group; i < K * (M / 8); i += THREADS) {
    const uint k = i / (M / 8), member = i % (M / 8) * 8;
    char4 four;
    four.x = get(x, k, member).x;
    four.y = get(x, k, member + 2).x;
    four.z = get(x, k, member + 4).x;
    four.w = get(x, k, member + 6).x;
    to[i] = four;
  }
}

// The same for the readout, [pairs][T][K].
template <int K, typename Register>
EGG_FUNCTION void keep_rows(device int8_t* rows, Register x, uint T, uint members, Lane lane) {
  for (uint m = 2 * lane.simdgroup; m < min(uint(M), members); m += 2 * SIMDGROUPS)
    for (uint k = lane.index; k < K; k += 32) rows[m / 2 * T * K + k] = get(x, k, m).x;
}

// x B of a product, [M / 2 pairs].
template <typename Sums>
EGG_FUNCTION void keep_sums(device int32_t* projections, Sums sums, Lane lane) {
  for (uint i = lane.in_group; i < M / 2; i += THREADS) projections[i] = sums[2 * i];
}

}  // namespace egg
