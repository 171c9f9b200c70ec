// The votes that a threadgroup counts: a square of a matrix's.

namespace egg {

// A tile's leaf, first row and column, the leaf's shape, and the offset of the leaf's votes.
struct Tile {
  uint32_t leaf, row, column, O, K, offset;
};

EGG_FUNCTION Tile tile_of(const EGG_DEVICE int32_t* t) {
  Tile tile;
  tile.leaf = t[0];
  tile.row = t[1];
  tile.column = t[2];
  tile.O = t[3];
  tile.K = t[4];
  tile.offset = t[5];
  return tile;
}

}  // namespace egg
