// y = table[x], 255 entries from x = -127

namespace egg {

inline int lookup(int x, constant int8_t* table) { return table[x + 127]; }

}  // namespace egg
