// Words of four bytes, turned over.

namespace egg {

// Rows of four bytes become columns.
__device__ inline uint4 turned_over(uint4 v) {
  const uint32_t xy = __byte_perm(v.x, v.y, 0x5140), zw = __byte_perm(v.z, v.w, 0x5140);
  const uint32_t far_xy = __byte_perm(v.x, v.y, 0x7362), far_zw = __byte_perm(v.z, v.w, 0x7362);
  return make_uint4(__byte_perm(xy, zw, 0x5410), __byte_perm(xy, zw, 0x7632),
                    __byte_perm(far_xy, far_zw, 0x5410), __byte_perm(far_xy, far_zw, 0x7632));
}

}  // namespace egg
