// y_i = clip((x_i w'_i) // max(1, sum|x| // D)). 16 lanes for a member.

namespace egg {

// floor(v / mean) of |v| <= 127^2 and mean in 1..127, by a reciprocal: (2 v + 1) / (2 mean) has the
// same floor and lies 1 / 254 or more from every whole number, which is beyond the error of
// (2 v + 1) (2^29 / mean) / 2^30, 2^15 / 2^30.
__device__ inline int over_mean(int v, int reciprocal) { return __mulhi(8 * v + 4, reciprocal); }

__device__ inline int reciprocal_of(int mean) { return int((1u << 29) / uint32_t(mean)); }

// |x| of four bytes, summed, and added to a sum.
__device__ inline int add_sizes(uint32_t x, int sum) {
  const uint32_t signs = (x >> 7 & 0x01010101u) * 254u + 0x01010101u;  // 1 or -1
  return __dp4a(int(x), int(signs), sum);
}

// scale: gives w' of four features by their quad.
template <int D, typename Scale>
__device__ inline void norm_by(uint32_t* y, const uint32_t* x, Scale scale_of, Row row) {
  int sum = 0;
  for (uint32_t quad = row.lane; quad < (D + 3) / 4; quad += 16) {
    const uint32_t v = x[word(quad, row.member)];
    if (4 * quad + 3 < D) {
      sum = add_sizes(v, sum);
    } else {
      for (uint32_t e = 0; e < 4; ++e)
        if (4 * quad + e < D) sum += abs(byte_of(v, e));
    }
  }
  const int mean = max(over_row(sum) / D, 1);
  const int reciprocal = reciprocal_of(mean);
  // Whole octets, as these are passed on.
  for (uint32_t quad = row.lane; quad < (D + 7) / 8 * 2; quad += 16) {
    const uint32_t v = x[word(quad, row.member)];
    const uint32_t scale = scale_of.word(quad);
    int out[4];
    for (int e = 0; e < 4; ++e) out[e] = over_mean(byte_of(v, e) * byte_of(scale, e), reciprocal);
    y[word(quad, row.member)] = clipped(out);
  }
}

// w' with its noise made here, which may differ from token to token.
template <int D>
struct MadeScale {
  const int8_t* w;
  Noise noise;
  uint32_t leaf;
  Row row;
  __device__ inline uint32_t word(uint32_t quad) const {
    return perturbed<D>(w, noise, leaf, row.member, quad, row.odd);
  }
};

template <int D>
__device__ inline void norm(uint32_t* y, const uint32_t* x, const int8_t* w, Noise noise,
                            uint32_t leaf, Row row) {
  const MadeScale<D> scale = {w, noise, leaf, row};
  norm_by<D>(y, x, scale, row);
}

// w' as `keep_vector` left it.
template <int D>
__device__ inline void norm(uint32_t* y, const uint32_t* x, const uint2* kept, Row row) {
  const uint2* mine = kept_of<D>(kept, row.member);
  const KeptVector scale = {reinterpret_cast<const uint32_t*>(mine) + row.odd};
  norm_by<D>(y, x, scale, row);
}

// The same for a lane that has octets of both members of a pair.

#define EGG_FOUR(mean) \
  (1 << 29) / (mean), (1 << 29) / ((mean) + 1), (1 << 29) / ((mean) + 2), (1 << 29) / ((mean) + 3)
#define EGG_SIXTEEN(mean) \
  EGG_FOUR(mean), EGG_FOUR((mean) + 4), EGG_FOUR((mean) + 8), EGG_FOUR((mean) + 12)
__constant__ const int RECIPROCALS[129] = {// of max(1, mean)
                                           1 << 29,         EGG_SIXTEEN(1),  EGG_SIXTEEN(17),
                                           EGG_SIXTEEN(33), EGG_SIXTEEN(49), EGG_SIXTEEN(65),
                                           EGG_SIXTEEN(81), EGG_SIXTEEN(97), EGG_SIXTEEN(113)};

__device__ inline uint32_t scaled(uint32_t v, uint32_t scale, int reciprocal) {
  int out[4];
  for (int e = 0; e < 4; ++e) {
    const int of_scale = __dp4a(int(scale), 8 << (8 * e), 0);
    out[e] = __mulhi(byte_of(v, e) * of_scale + 4, reciprocal);
  }
  return clipped(out);
}

template <int D>
__device__ inline void norm(uint32_t* y, const uint32_t* x, const uint2* kept, Pair pair) {
  uint4 v[D / 256];
  int even = 0, odd = 0;
#pragma unroll
  for (uint32_t i = 0; i < D / 256; ++i) {
    v[i] = get(x, Octet{pair.lane + 32 * i}, pair.member);
    even = add_sizes(v[i].y, add_sizes(v[i].x, even));
    odd = add_sizes(v[i].w, add_sizes(v[i].z, odd));
  }
  const int of_even = RECIPROCALS[uint32_t(over_pair(even)) / D];
  const int of_odd = RECIPROCALS[uint32_t(over_pair(odd)) / D];
#pragma unroll
  for (uint32_t i = 0; i < D / 256; ++i) {
    const Octet octet = {pair.lane + 32 * i};
    const uint4 w = kept_at<D>(kept, pair.member, octet);
    put(y, octet, pair.member,
        make_uint4(scaled(v[i].x, w.x, of_even), scaled(v[i].y, w.y, of_even),
                   scaled(v[i].z, w.z, of_odd), scaled(v[i].w, w.w, of_odd)));
  }
}

}  // namespace egg
