// The C-backend report's mask of illegal moves, and a branch. Under -ffast-math a compiler may take
// x + (1 - m) * -1e8 for (x + -1e8) + m * 1e8, which is 0 for every x of ordinary size.
extern "C" float masked_by_arithmetic(float x, float m) { return x + (1.0f - m) * -1e8f; }
extern "C" float masked_by_branch(float x, float m) { return m != 0.0f ? x : -1e8f; }
