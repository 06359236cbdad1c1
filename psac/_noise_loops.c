/* Box-Muller and the noisy addition of psac/noise.py in one pass each, in float64.
 *
 * The loops use only arithmetic and bit operations, so that a compiler vectorises them for any
 * processor.  Polynomials: fdlibm's log, sin and cos (Sun Microsystems, free to use), error below
 * 2^-52.  The same functions of the same bits as
 * TorchLoops in _noise_loops.py, to a few units in the last place. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline double as_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline uint64_t as_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }

/* The signed integer a, rounded once: its halves are planted in the mantissas of 2^52 and 2^84. */
static inline double to_double(uint64_t a) {
    double low = as_double((a & 0xffffffffu) | 0x4330000000000000u);
    double high = as_double((a >> 32) ^ 0x4530000080000000u);
    return (high - 0x1.00000801p84) + low;
}

/* log(u) for 2^-64 <= u <= 1: u = 2^e m with sqrt(1/2) <= m < sqrt(2). */
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

/* In place: words[0..pairs) give radii, words[pairs..2 pairs) angles; out come float64 bits. */
void psac_gaussians(uint64_t *words, int64_t pairs, double std) {
    for (int64_t i = 0; i < pairs; i++) {
        double u = fabs(to_double(words[i])) * 0x1p-63 + 0x1p-64;
        double r = sqrt(-2 * std * std * log_unit(u));
        uint64_t a = words[pairs + i], quadrant = (a + (1ull << 61)) >> 62;
        double x = to_double(a - (quadrant << 62)) * (3.14159265358979323846 * 0x1p-63), t = x * x;
        double s = 1.58969099521155010221e-10, c = -1.13596475577881948265e-11;
        s = s * t - 2.50507602534068634195e-08, c = c * t + 2.08757232129817482790e-09;
        s = s * t + 2.75573137070700676789e-06, c = c * t - 2.75573143513906633035e-07;
        s = s * t - 1.98412698298579493134e-04, c = c * t + 2.48015872894767294178e-05;
        s = s * t + 8.33333333332248946124e-03, c = c * t - 1.38888888888741095749e-03;
        s = s * t - 1.66666666666666324348e-01, c = c * t + 4.16666666666666019037e-02;
        s = r * (x + x * t * s), c = r * (1 - 0.5 * t + t * t * c);
        uint64_t cosine = as_bits(quadrant & 1 ? s : c), sine = as_bits(quadrant & 1 ? c : s);
        words[i] = cosine ^ (((quadrant + 1) & 2) << 62);
        words[pairs + i] = sine ^ ((quadrant & 2) << 62);
    }
}

/* Adding the anchor rounds to the grid, once for the sum and once for the noise; the rest is exact.
 * A NaN fails both comparisons and stays. */
#define DEFINE_ADD(name, real)                                                                     \
    void name(const double *noise, const real *sums, real *out, int64_t count, double anchor,      \
              double limit, double scale) {                                                        \
        for (int64_t i = 0; i < count; i++) {                                                      \
            double x = sums[i];                                                                    \
            x = x > limit ? limit : x;                                                             \
            x = x < -limit ? -limit : x;                                                           \
            out[i] = (real)(((x - anchor) + (noise[i] + anchor)) * scale);                         \
        }                                                                                          \
    }
DEFINE_ADD(psac_add_float, float)
DEFINE_ADD(psac_add_double, double)
