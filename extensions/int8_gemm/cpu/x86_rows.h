// Rows of bytes that lists name, with AVX2 or AVX-512, in place of those of a unit's base; see
// portable_isa.h.

template <typename Base, typename V>
struct SparseRows : Base {
  static constexpr int kHalves = 2 * V::kWidth, kBytes = 4 * V::kWidth;  // of a vector

  static void sum_rows(const int8_t* from, int64_t step, ActiveRows rows, int n, int16_t* to) {
    int k = 0;
    for (; k + 4 * kHalves <= n; k += 4 * kHalves) sum_some<4>(from + k, step, rows, to + k);
    for (; k + 2 * kHalves <= n; k += 2 * kHalves) sum_some<2>(from + k, step, rows, to + k);
    for (; k + kHalves <= n; k += kHalves) sum_some<1>(from + k, step, rows, to + k);
    Base::sum_rows(from + k, step, rows, n - k, to + k);
  }

  template <int count>
  static void sum_some(const int8_t* from, int64_t step, ActiveRows rows, int16_t* to) {
    V total[count];
    for (V& v : total) v = V::all32(0);
    each_row(rows, [&](int32_t row) {
      for (int j = 0; j < count; ++j)
        total[j] = total[j].add16(V::widened16(from + row * step + j * kHalves));
    });
    for (int j = 0; j < count; ++j) total[j].storeu(to + j * kHalves);
  }

  static void give_rows(const int8_t* from, int64_t step, ActiveRows rows, int n, int by,
                        int16_t* sum, int8_t* to) {
    int k = 0;
    for (; k + 2 * kBytes <= n; k += 2 * kBytes) give_some<2>(from + k, step, rows, by, to + k);
    for (; k + kBytes <= n; k += kBytes) give_some<1>(from + k, step, rows, by, to + k);
    if (k == n) return;
    sum_rows(from + k, step, rows, n - k, sum);
    clip_sums(sum, n - k, by, to + k);
  }

  // Of whole vectors of bytes: those of two rows become neighbours, whose sums fit 16 bits.
  template <int count>
  static void give_some(const int8_t* from, int64_t step, ActiveRows rows, int by, int8_t* to) {
    V low[count], high[count];
    for (int j = 0; j < count; ++j) low[j] = high[j] = V::all32(0);
    auto row = [&](int i, int j) { return V::loadu(from + rows.row[i] * step + j * kBytes); };
    auto add = [&](int j, V a, V b) {
      low[j] = low[j].add16(a.low8(b).pairs8()), high[j] = high[j].add16(a.high8(b).pairs8());
    };
    int i = 0;
    for (; i + 4 <= rows.count; i += 4)  // as `each_row` has them
      for (int j = 0; j < count; ++j)
        add(j, row(i, j), row(i + 1, j)), add(j, row(i + 2, j), row(i + 3, j));
    for (; i < rows.count; ++i)
      for (int j = 0; j < count; ++j) add(j, row(i, j), V::all32(0));
    for (int j = 0; j < count; ++j) {
      const V bytes = low[j].sra16(by).packs16(high[j].sra16(by));
      bytes.max8(V::all8(-127)).storeu(to + j * kBytes);
    }
  }

  static void clip_sums(const int16_t* from, int n, int by, int8_t* to) {
    int k = 0;
    for (; k + kHalves <= n; k += kHalves) V::loadu(from + k).sra16(by).clip16(to + k);
    Base::clip_sums(from + k, n - k, by, to + k);
  }

  template <typename T>
  static void add_to_rows(const int8_t* from, int n, ActiveRows rows, T* z) {
    constexpr int kColumns = sizeof(T) == 2 ? kHalves : V::kWidth;
    int k = 0;
    for (; k + 8 * kColumns <= n; k += 8 * kColumns) add_some<8>(from, k, n, rows, z);
    for (; k + 4 * kColumns <= n; k += 4 * kColumns) add_some<4>(from, k, n, rows, z);
    for (; k + 2 * kColumns <= n; k += 2 * kColumns) add_some<2>(from, k, n, rows, z);
    for (; k + kColumns <= n; k += kColumns) add_some<1>(from, k, n, rows, z);
    for (int i = 0; k < n && i < rows.count; ++i)
      Base::add_bytes(from + k, n - k, z + int64_t{rows.row[i]} * n + k);
  }

  template <int count, typename T>
  static void add_some(const int8_t* from, int k, int n, ActiveRows rows, T* z) {
    constexpr bool kShort = sizeof(T) == 2;
    constexpr int kColumns = kShort ? kHalves : V::kWidth;
    V wide[count];
    for (int j = 0; j < count; ++j) {
      const int8_t* at = from + k + j * kColumns;
      wide[j] = kShort ? V::widened16(at) : V::widenedu(at);
    }
    each_row(rows, [&](int32_t row) {
      T* to = z + int64_t{row} * n + k;
      for (int j = 0; j < count; ++j) {
        const V before = V::loadu(to + j * kColumns);
        (kShort ? before.add16(wide[j]) : before.add32(wide[j])).storeu(to + j * kColumns);
      }
    });
  }

  // Four at a time: where lists differ in length, the end of a loop is guessed wrong less often.
  template <typename Each>
  static inline __attribute__((always_inline)) void each_row(ActiveRows rows, Each each) {
    int i = 0;
    for (; i + 4 <= rows.count; i += 4)
      each(rows.row[i]), each(rows.row[i + 1]), each(rows.row[i + 2]), each(rows.row[i + 3]);
    for (; i < rows.count; ++i) each(rows.row[i]);
  }
};
