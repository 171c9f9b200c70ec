// y = table[x], 255 entries from x = -127

namespace egg {

EGG_FUNCTION int lookup(int x, EGG_CONSTANT int8_t* table) { return table[x + 127]; }

}  // namespace egg
