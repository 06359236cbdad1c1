/* The inner loop of psac/noise.py: keystream to noise to noisy sums, a block at a time.
 *
 * Only arithmetic and bit operations, so that a compiler can vectorise it for any processor.  The
 * polynomials are those of log, sin and cos in fdlibm (Sun Microsystems, freely distributable) and
 * err by less than 2^-52.  It computes what TorchLoops in _noise_loops.py computes, from the same
 * bits, to a few units in the last place before rounding to the grid. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 256 }; /* Pairs at a time, so that their noise stays in the nearest cache. */

static inline double as_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline uint64_t as_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

/* The signed integer a, rounded once. */
static inline double to_double(uint64_t a) {
#if defined(__AVX512DQ__) || defined(__aarch64__)
    return (double)(int64_t)a;
#else /* No vector instruction: plant the halves of a in the mantissas of 2^52 and 2^84. */
    double low = as_double((a & 0xffffffffu) | 0x4330000000000000u);
    double high = as_double((a >> 32) ^ 0x4530000080000000u);
    return (high - 0x1.00000801p84) + low;
#endif
}

/* log(u) for 2^-64 <= u <= 1: u = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
static inline double log_unit(double u) {
    uint64_t b = as_bits(u), e = (b - 0x3fe6a09e667f3bcdu + 0x3ff0000000000000u) >> 52;
    double f = as_double(b - ((e - 1023) << 52)) - 1, s = f / (2 + f), t = s * s;
    double p = 1.479819860511658591e-01;
    p = p * t + 1.531383769920937332e-01;
    p = p * t + 1.818357216161805012e-01;
    p = p * t + 2.222219843214978396e-01;
    p = p * t + 2.857142874366239149e-01;
    p = p * t + 3.999999999940941908e-01;
    p = p * t + 6.666666666666735130e-01;
    double exponent = as_double(0x4330000000000000u + e) - (0x1p52 + 1023);
    return exponent * 0.69314718055994530942 + (2 * s + s * t * p);
}

/* Box-Muller: every radius and angle give a cosine and a sine (the bits of float64 numbers). */
static void gaussians(const uint64_t *restrict radii, const uint64_t *restrict angles,
                      uint64_t *restrict cosines, uint64_t *restrict sines, int count, double std) {
    for (int i = 0; i < count; i++) {
        double u = fabs(to_double(radii[i])) * 0x1p-63 + 0x1p-64;
        double r = sqrt(-2 * std * std * log_unit(u));
        uint64_t a = angles[i], quadrant = (a + (1ull << 61)) >> 62;
        double x = to_double(a - (quadrant << 62)) * (3.14159265358979323846 * 0x1p-63), t = x * x;
        double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
        s = s * t - 2.50507602534068634195e-08, c = c * t + 2.08757232129817482790e-09;
        s = s * t + 2.75573137070700676789e-06, c = c * t - 2.75573143513906633035e-07;
        s = s * t - 1.98412698298579493134e-04, c = c * t + 2.48015872894767294178e-05;
        s = s * t + 8.33333333332248946124e-03, c = c * t - 1.38888888888741095749e-03;
        s = s * t - 1.66666666666666324348e-01, c = c * t + 4.16666666666666019037e-02;
        s = r * (x + x * t * s), c = r * (1 - 0.5 * t + t * t * c);
        cosines[i] = as_bits(quadrant & 1 ? s : c) ^ (((quadrant + 1) & 2) << 62);
        sines[i] = as_bits(quadrant & 1 ? c : s) ^ ((quadrant & 2) << 62);
    }
}

/* Adding the anchor rounds to the grid: in float64 no finer digits remain beside it.  The sum of
 * the two rounded numbers is then exact.  NaN fails both comparisons and stays.
 * The first `pairs` entries get the cosines, the others the sines; count may be below 2 pairs. */
#define DEFINE(real)                                                                               \
    static void add_##real(const uint64_t *noise, const real *sums, real *out, int64_t count,      \
                           double grid, double scale) {                                            \
        double anchor = 0x1.8p52 * grid, limit = 0x1p50 * grid;                                    \
        for (int64_t i = 0; i < count; i++) {                                                      \
            double x = sums[i];                                                                    \
            x = x > limit ? limit : x;                                                             \
            x = x < -limit ? -limit : x;                                                           \
            out[i] = (real)(((x - anchor) + (as_double(noise[i]) + anchor)) * scale);              \
        }                                                                                          \
    }                                                                                              \
    void psac_add_noise_##real(const uint64_t *words, int64_t pairs, const real *sums, real *out,  \
                               int64_t count, double std, double grid, double scale) {             \
        uint64_t cosines[BLOCK], sines[BLOCK];                                                     \
        for (int64_t i = 0, j = pairs; i < pairs; i += BLOCK, j += BLOCK) {                        \
            int64_t some = pairs - i < BLOCK ? pairs - i : BLOCK;                                  \
            gaussians(words + i, words + j, cosines, sines, (int)some, std);                       \
            add_##real(cosines, sums + i, out + i, count - i < some ? count - i : some, grid,      \
                       scale);                                                                     \
            add_##real(sines, sums + j, out + j, count - j < some ? count - j : some, grid,        \
                       scale);                                                                     \
        }                                                                                          \
    }
DEFINE(float)
DEFINE(double)
