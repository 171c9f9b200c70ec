// What a world answers, made into what the engine works with. Included inside a namespace, after
// eggroll_world.h.

constexpr uint8_t kWorldIdle = EGGROLL_IDLE, kWorldBegins = EGGROLL_BEGINS;
constexpr int32_t kMostWorth = 1 << 30;  // of a row, either way

static inline uint8_t world_flag(int32_t answer) {
  return answer == EGGROLL_IDLE || answer == EGGROLL_BEGINS ? static_cast<uint8_t>(answer)
                                                            : uint8_t{EGGROLL_ROW};
}

// What a member's rows were worth, [rows].
static inline void world_value(const eggroll_world& world, const void* shared, void* mine, int rows,
                               int32_t* values) {
  __builtin_memset(values, 0, static_cast<size_t>(rows) * sizeof(int32_t));
  world.value(shared, mine, rows, values);
  for (int t = 0; t < rows; ++t) {
    int32_t v = values[t];
    values[t] = v < -kMostWorth ? -kMostWorth : v > kMostWorth ? kMostWorth : v;
  }
}
