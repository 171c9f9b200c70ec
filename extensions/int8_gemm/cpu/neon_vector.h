// The vector that epilogue.h takes, with NEON: four values of 32 bits. Included inside each unit's
// namespace.

struct V128 {
  static constexpr int kWidth = 4;         // lanes
  static constexpr bool kTurns16 = false;  // see PortableIsa::kPairsOfNodes
  int32x4_t v;

  static V128 of(int16x8_t x) { return {vreinterpretq_s32_s16(x)}; }
  static V128 of(uint16x8_t x) { return {vreinterpretq_s32_u16(x)}; }
  static V128 of(uint32x4_t x) { return {vreinterpretq_s32_u32(x)}; }
  static V128 of(int8x16_t x) { return {vreinterpretq_s32_s8(x)}; }
  uint32x4_t u32() const { return vreinterpretq_u32_s32(v); }
  int16x8_t s16() const { return vreinterpretq_s16_s32(v); }
  uint16x8_t u16() const { return vreinterpretq_u16_s32(v); }
  int8x16_t s8() const { return vreinterpretq_s8_s32(v); }

  static V128 load(const int32_t* p) { return {vld1q_s32(p)}; }
  static V128 loadu(const void* p) { return of(vld1q_s8(static_cast<const int8_t*>(p))); }
  static V128 widened(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return {vmovl_s16(vget_low_s16(vmovl_s8(bytes)))};
  }
  void store(uint32_t* p) const { vst1q_u32(p, u32()); }

  static V128 all32(int32_t x) { return {vdupq_n_s32(x)}; }
  static V128 all16(int x) { return of(vdupq_n_s16(static_cast<int16_t>(x))); }
  static V128 all8(int x) { return of(vdupq_n_s8(static_cast<int8_t>(x))); }
  // Sums wrap: gcc's intrinsics for signed numbers are its own signed arithmetic.
  V128 add32(V128 b) const { return of(vaddq_u32(u32(), b.u32())); }
  V128 sub32(V128 b) const { return of(vsubq_u32(u32(), b.u32())); }
  V128 mul32(V128 b) const { return of(vmulq_u32(u32(), b.u32())); }
  // Operators, as the compiler knows which shifts are constant, and of which it can make a sum.
  V128 sra32(int by) const { return {v >> by}; }
  V128 sra16(int by) const { return of(static_cast<int16x8_t>(s16() >> static_cast<int16_t>(by))); }
  V128 srl16(int by) const {
    return of(static_cast<uint16x8_t>(u16() >> static_cast<uint16_t>(by)));
  }
  V128 sll32(int by) const {
    return of(static_cast<uint32x4_t>(u32() << static_cast<uint32_t>(by)));
  }
  V128 adds16(V128 b) const { return of(vqaddq_s16(s16(), b.s16())); }
  V128 sub16(V128 b) const { return of(vsubq_u16(u16(), b.u16())); }
  V128 min_u16(V128 b) const { return of(vminq_u16(u16(), b.u16())); }
  V128 low16(V128 b) const { return of(vzip1q_s16(s16(), b.s16())); }
  V128 high16(V128 b) const { return of(vzip2q_s16(s16(), b.s16())); }
  // Twice the high half's worth, halved again: exact, as nobody multiplies -2^15 by itself.
  V128 mulhi16(V128 b) const { return of(vshrq_n_s16(vqdmulhq_s16(s16(), b.s16()), 1)); }
  V128 mulhi_u16(V128 b) const {
    const uint32x4_t low = vmull_u16(vget_low_u16(u16()), vget_low_u16(b.u16()));
    const uint32x4_t high = vmull_high_u16(u16(), b.u16());
    return of(vuzp2q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high)));
  }
  V128 either(V128 b) const { return {vorrq_s32(v, b.v)}; }
  V128 flipped(V128 b) const { return {veorq_s32(v, b.v)}; }
  V128 both(V128 b) const { return {vandq_s32(v, b.v)}; }
  // Both halves of a word times the other's, whose products fit 16 bits, added up.
  V128 dot16(V128 a, V128 b) const { return {vpadalq_s16(v, vmulq_s16(a.s16(), b.s16()))}; }
  V128 packs32(V128 b) const { return of(vqmovn_high_s32(vqmovn_s32(v), b.v)); }
  V128 packus32(V128 b) const { return of(vqmovun_high_s32(vqmovun_s32(v), b.v)); }
  V128 packs16(V128 b) const { return of(vqmovn_high_s16(vqmovn_s16(s16()), b.s16())); }
  V128 max8(V128 b) const { return of(vmaxq_s8(s8(), b.s8())); }
  V128 turned() const {  // bytes 4 j + i to 4 i + j
    static constexpr uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return of(vqtbl1q_s8(s8(), vld1q_u8(kOrder)));
  }
};
