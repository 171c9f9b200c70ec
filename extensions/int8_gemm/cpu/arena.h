// Scratch memory handed out piece by piece; without a base it only counts the bytes needed. A part
// of block.h, which includes it.

struct Arena {
  char* base;
  size_t used = 0;

  template <typename T>
  T* take(size_t count) {
    used = (used + 63) & ~size_t{63};
    T* p = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += count * sizeof(T);
    return p;
  }
};
