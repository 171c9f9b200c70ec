// Words of a counter-based stream, see draws.h. Included inside each unit's namespace.

static void draw(uint64_t stream, uint64_t first, int64_t count, uint64_t room,
                 int32_t* __restrict out) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  const uint64_t at = stream + first * kGolden;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = at + static_cast<uint64_t>(i) * kGolden;  // and then SplitMix64's finalizer
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    out[i] = static_cast<int32_t>(static_cast<uint32_t>(((z >> 32) * room) >> 32));
  }
}
