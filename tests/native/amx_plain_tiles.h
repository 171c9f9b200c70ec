// The tiles of isa_amx.cpp in plain C++, which run anywhere. What is loaded is as large as a
// tile, so a sanitizer sees a step beyond memory. Every thread has its own: using or closing those
// that it has not opened is a fault, and so is opening them twice.
#pragma once

struct Tiles {
  struct Registers {
    bool open = false;
    alignas(64) int8_t bytes[8][16][64];
  };
  static Registers& own() {
    thread_local Registers registers;
    return registers;
  }
  static int8_t (*at(int tile))[64] {
    if (!own().open) __builtin_trap();
    return own().bytes[tile];
  }

  static void open() {
    if (own().open) __builtin_trap();
    open_again();
  }
  static void open_again() {
    own().open = true;
    __builtin_memset(own().bytes, 0, sizeof own().bytes);
  }
  static void close() {
    at(0);
    own().open = false;
  }

  template <int tile>
  static void zero() {
    __builtin_memset(at(tile), 0, 16 * 64);
  }
  template <int tile>
  static void load(const void* from, long stride) {
    for (int m = 0; m < 16; ++m)
      __builtin_memcpy(at(tile)[m], static_cast<const char*>(from) + m * stride, 64);
  }
  template <int sums, int a, int b>
  static void multiply() {
    add_product(at(a), at(b), at(sums));
  }
  // Unchecked, as it touches nothing but the registers and takes most of the time.
  __attribute__((no_sanitize("address", "undefined"))) static void add_product(
      const int8_t (*a)[64], const int8_t (*b)[64], int8_t (*sums)[64]) {
    int16_t wide[16][4][16];  // [k][i][n]
    for (int k = 0; k < 16; ++k)
      for (int i = 0; i < 4; ++i)
        for (int n = 0; n < 16; ++n) wide[k][i][n] = b[k][4 * n + i];
    for (int m = 0; m < 16; ++m) {
      uint32_t row[16];
      __builtin_memcpy(row, sums[m], sizeof row);
      for (int k = 0; k < 64; ++k)
        for (int n = 0; n < 16; ++n)
          row[n] += static_cast<uint32_t>(a[m][k] * wide[k / 4][k % 4][n]);
      __builtin_memcpy(sums[m], row, sizeof row);
    }
  }
  template <int tile>
  static void store(void* to, long stride) {
    for (int m = 0; m < 16; ++m)
      __builtin_memcpy(static_cast<char*>(to) + m * stride, at(tile)[m], 64);
  }
};
