// y = table[x], 255 entries from x = -127

namespace egg {

// The rows that pad a register may hold anything, -128 too.
EGG_FUNCTION int lookup(int x, EGG_CONSTANT int8_t (&table)[255]) {
  return table[max(x, -127) + 127];
}

}  // namespace egg
