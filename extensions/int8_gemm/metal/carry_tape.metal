// What a row leaves for its way back: values as registers have them, [rows][M].

namespace egg {

EGG_FUNCTION void keep_value(device int8_t* to, uint feature, uint member, char2 v) {
  reinterpret_cast<device char2*>(to)[(feature * M + member) / 2] = v;
}

// A register of N features. One simdgroup per pair.
template <int N, typename Register>
EGG_FUNCTION void keep_row(device int8_t* to, Register x, uint member, Lane lane) {
  for (uint k = lane.index; k < N; k += 32) keep_value(to, k, member, get(x, k, member));
}

}  // namespace egg
