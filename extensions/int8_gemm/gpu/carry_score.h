// The head's error: 127 times what the probabilities lack, rounded by chance. One simdgroup per
// member.
//
// ERROR_EXP2, floor(2^(4 + u / 16)), is generated.

namespace egg {

// errors, logits: of the row, where they lie; word: the head's own of the token. Returns this
// lane's part of the sum of |e|.
template <int V>
EGG_FUNCTION uint64_t score_back(EGG_DEVICE int8_t* errors, const EGG_DEVICE int8_t* logits,
                                 int target, uint32_t word, uint32_t m, bool there, Lane lane) {
  uint32_t mine = 0;  // of 2^11 powers below 2^20, at most
  for (uint32_t v = lane.index; v < V; v += 32) mine += ERROR_EXP2[int(logits[place(v, m)]) + 128];
  const uint64_t total = uint64_t(over_lanes(int64_t(mine)));
  const uint32_t by = uint32_t(max(40 - leading_zeros(total), 0));  // to 24 bits
  const uint32_t ratio = (127u << 24) / uint32_t(total >> by);
  uint32_t size = 0;
  for (uint32_t v = lane.index; v < V; v += 32) {
    const uint32_t at = place(v, m), power = ERROR_EXP2[int(logits[at]) + 128];
    const uint32_t chance = mixed(word + v) >> 16;
    int e = -int(((((power >> by) * ratio) >> 8) + chance) >> 16);
    if (int(v) == target) e += 127;
    // A clipped logit cannot be pushed further out.
    if ((logits[at] == 127 && e > 0) || (logits[at] == -127 && e < 0) || !there) e = 0;
    errors[at] = int8_t(e);
    size += uint32_t(abs(e));
  }
  return size;
}

}  // namespace egg
