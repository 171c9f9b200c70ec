// Primitives that all NEON units share. Included inside each unit's namespace, after
// portable_isa.h. The compiler turns the rest of PortableIsa into NEON by itself; these it leaves
// as loops over single bytes.

struct NeonIsa : NeonElements {
  // One round interleaves rows i and i + 8; after four rounds rows have become columns.
  static void transpose(const int8_t* const* src, int8_t* dst) {
    int8x16_t a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = vld1q_s8(src[i]);
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 8; ++i) {
        b[2 * i] = vzip1q_s8(a[i], a[i + 8]);
        b[2 * i + 1] = vzip2q_s8(a[i], a[i + 8]);
      }
      for (int i = 0; i < 16; ++i) a[i] = b[i];
    }
    for (int i = 0; i < 16; ++i) vst1q_s8(dst + 16 * i, a[i]);
  }

  // dst[w * stride + p] = the w-th word of row src[p], for p = 0..15 and w < words.
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    int w = 0, whole = words & ~3;
    for (; w < whole; w += 4, dst += 4 * stride)
      for (int p = 0; p < kPairs; p += 4) {
        uint32x4_t r[4];
        for (int i = 0; i < 4; ++i) r[i] = load_words(src[p + i] + 4 * w);
        uint32x4_t a = vzip1q_u32(r[0], r[2]), b = vzip2q_u32(r[0], r[2]);
        uint32x4_t c = vzip1q_u32(r[1], r[3]), d = vzip2q_u32(r[1], r[3]);
        vst1q_u32(dst + p, vzip1q_u32(a, c));
        vst1q_u32(dst + stride + p, vzip2q_u32(a, c));
        vst1q_u32(dst + 2 * stride + p, vzip1q_u32(b, d));
        vst1q_u32(dst + 3 * stride + p, vzip2q_u32(b, d));
      }
    for (; w < words; ++w, dst += stride)
      for (int p = 0; p < kPairs; ++p) __builtin_memcpy(dst + p, src[p] + 4 * w, 4);
  }

  // EXP2[u] = mantissa[u % 16] >> (15 - u / 16), the sixteen mantissas in the four registers of one
  // table. With u = byte ^ 128: u % 16 is the byte's low nibble, 15 - u / 16 its high nibble ^ 7.
  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    uint8x16x4_t mantissa;
    for (int i = 0; i < 4; ++i)
      mantissa.val[i] = vreinterpretq_u8_u32(vld1q_u32(plan.exp2_mantissa + 4 * i));
    const uint32x4_t nibble = vdupq_n_u32(15), seven = vdupq_n_u32(7);
    for (int m = 0; m < kLanes; m += 4) {
      uint32x4_t total = vld1q_u32(sum + m);
      for (int o = 0; o < count; ++o) {
        uint32x4_t byte = vshlq_u32(vld1q_u32(words[o / 4] + m), vdupq_n_s32(-8 * (o % 4)));
        uint32x4_t high = veorq_u32(vandq_u32(vshrq_n_u32(byte, 4), nibble), seven);
        // The four byte positions of a mantissa in the table.
        uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), vandq_u32(byte, nibble), 0x04040404);
        uint32x4_t value = vreinterpretq_u32_u8(vqtbl4q_u8(mantissa, vreinterpretq_u8_u32(at)));
        total = vaddq_u32(total, vshlq_u32(value, vnegq_s32(vreinterpretq_s32_u32(high))));
      }
      vst1q_u32(sum + m, total);
    }
  }
};
