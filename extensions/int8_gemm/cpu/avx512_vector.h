// Sixteen lanes for x86_epilogue.h. Included by units of AVX-512 inside their own namespaces.
struct V512 {
  static constexpr int kWidth = 16;  // lanes
  __m512i v;

  static V512 load(const int32_t* p) { return {_mm512_load_si512(p)}; }
  static V512 loadu(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
  static V512 widened(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  void store(uint32_t* p) const { _mm512_store_si512(p, v); }
  static V512 all32(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static V512 all16(int x) { return {_mm512_set1_epi16(static_cast<int16_t>(x))}; }
  static V512 all8(int x) { return {_mm512_set1_epi8(static_cast<int8_t>(x))}; }
  V512 add32(V512 b) const { return {_mm512_add_epi32(v, b.v)}; }
  V512 sub32(V512 b) const { return {_mm512_sub_epi32(v, b.v)}; }
  V512 mul32(V512 b) const { return {_mm512_mullo_epi32(v, b.v)}; }
  V512 sra32(int by) const { return {_mm512_sra_epi32(v, _mm_cvtsi32_si128(by))}; }
  V512 flipped(V512 b) const { return {_mm512_xor_si512(v, b.v)}; }
  V512 packs32(V512 b) const { return {_mm512_packs_epi32(v, b.v)}; }
  V512 packus32(V512 b) const { return {_mm512_packus_epi32(v, b.v)}; }
  V512 packs16(V512 b) const { return {_mm512_packs_epi16(v, b.v)}; }
  V512 min_u16(V512 b) const { return {_mm512_min_epu16(v, b.v)}; }
  V512 mulhi_u16(V512 b) const { return {_mm512_mulhi_epu16(v, b.v)}; }
  V512 srl16(int by) const { return {_mm512_srl_epi16(v, _mm_cvtsi32_si128(by))}; }
  V512 sub16(V512 b) const { return {_mm512_sub_epi16(v, b.v)}; }
  V512 max8(V512 b) const { return {_mm512_max_epi8(v, b.v)}; }
  V512 turned() const {  // bytes 4 j + i of 128 bits to 4 i + j
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return {_mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order))};
  }
};
