// The tape that a stage leaves for token credit: the inputs of its matrices, and x B where weights
// have noise. Of member 2p of every pair.

namespace egg {

// The inputs of a token, four a word: [K / 4][M / 2 pairs].
template <int K>
__device__ inline void keep(int8_t* tape, const uint32_t* x, Lane lane) {
  for (uint32_t i = lane.thread; i < (K + 3) / 4 * (M / 2); i += THREADS)
    reinterpret_cast<uint32_t*>(tape)[i] = x[word(i / (M / 2), i % (M / 2) * 2)];
}

// The same for the readout, [pairs][T][K].
template <int K>
__device__ inline void keep_rows(int8_t* rows, const uint32_t* x, uint32_t T, uint32_t members,
                                 Lane lane) {
  for (uint32_t i = lane.thread; i < K * (min(uint32_t(M), members) / 2); i += THREADS) {
    const uint32_t pair = i / K, k = i % K;
    rows[pair * T * K + k] = int8_t(byte_of(x[word(k / 4, 2 * pair)], k % 4));
  }
}

// x B of a product, [M / 2 pairs].
__device__ inline void keep_sums(int32_t* projections, const int* sums, Lane lane) {
  for (uint32_t i = lane.thread; i < M / 2; i += THREADS) projections[i] = sums[2 * i];
}

}  // namespace egg
