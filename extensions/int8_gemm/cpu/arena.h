// Scratch memory handed out piece by piece; without a base it only adds up what is needed. Included
// like block.h, before it.

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
