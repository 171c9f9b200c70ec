// Written by fit_polynomials.py; highest power first.
#pragma once

namespace float_kernels_impl {

inline constexpr float kErfSplit = 1.0f, kErfEnd = 4.0f;
inline constexpr float kNormalEnd = 6.0f;
inline constexpr float kExp[] = {
    1.393364393e-03f, 8.363175206e-03f, 4.166646674e-02f, 1.666657627e-01f, 5.000000000e-01f,
};
inline constexpr float kTanh[] = {
    -6.104948930e-03f, 2.100364119e-02f, -5.385249853e-02f, 1.333278269e-01f, -3.333332837e-01f,
};
inline constexpr float kErf[] = {
    7.882497448e-05f, -8.018855006e-04f, 5.189312156e-03f, -2.685432881e-02f,
    1.128359735e-01f, -3.761262596e-01f, 1.283791661e-01f,
};
inline constexpr float kErfTail[] = {
    2.179032163e-05f, -4.426076775e-04f, 4.211114254e-03f, -2.522662841e-02f,
    1.084488481e-01f, 6.331905723e-01f,  1.129593968e+00f, -1.914784953e-04f,
};
inline constexpr float kNormalTail[] = {
    -2.951100839e-07f, 7.308644854e-06f, -8.144927415e-05f, 5.483598216e-04f,
    -2.547196811e-03f, 8.928030729e-03f, -2.538738213e-02f, 6.186639145e-02f,
    -1.327833086e-01f, 2.499681413e-01f, -3.989402652e-01f, 4.999999702e-01f,
};

}  // namespace float_kernels_impl
