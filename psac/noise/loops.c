/* The inner loop of psac/noise/gaussian.py: keystream to noise to noisy sums, a block at a time.
 *
 * Only arithmetic and bit operations, so that a compiler can vectorise it for any processor, but
 * for the two headers, which know instructions that some processors have.  The polynomials err by
 * less than 2^-50 (Chebyshev interpolation).  It computes what TorchLoops in loops.py
 * computes, from the same bits, to a few units in the last place before rounding to the grid. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    BLOCK = 64, /* Pairs at a time, so that all about them stays in the nearest cache. */
    PART = 1 << 14, PARTS = 8, /* How threads share a large piece. */
};

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

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include "avx512.h"
#else
/* log(u) for 2^-64 <= u <= 1: u = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
static inline double log_unit(double u) {
    uint64_t b = as_bits(u), e = (b - 0x3fe6a09e667f3bcdu + 0x3ff0000000000000u) >> 52;
    double f = as_double(b - ((e - 1023) << 52)) - 1, s = f / (2 + f), t = s * s;
    double p = 0.16621817154141283;
    p = p * t + 0.18140193802762244;
    p = p * t + 0.2222286228011177;
    p = p * t + 0.2857142413832412;
    p = p * t + 0.40000000011206505;
    p = p * t + 0.6666666666666208;
    double exponent = as_double(0x4330000000000000u + e) - (0x1p52 + 1023);
    return exponent * 0.69314718055994530942 + (2 * s + s * t * p);
}

/* The radius of each pair, with a random sign. */
static inline void eight_radii(const uint64_t *restrict words, double *restrict out) {
    for (int i = 0; i < 8; i++) {
        double v = to_double(words[i]) * 0x1p-63 + 0x1p-64;
        out[i] = copysign(sqrt(-2 * log_unit(fabs(v))), v);
    }
}
#endif

/* Box-Muller: radii r become r cos(2x) and r sin(2x), for an angle 2x of each pair between -pi/2
 * and pi/2; the other half of the circle is where r < 0.  With s and c, the polynomials of
 * sqrt(2) sin(x) and sqrt(2) cos(x), these are r - r s s and r s c. */
static void rotate(double *restrict cosines, const uint64_t *restrict angles,
                   double *restrict sines) {
    for (int i = 0; i < BLOCK; i++) {
        double x = to_double(angles[i]) * (3.14159265358979323846 * 0x1p-65), t = x * x;
        double s = 2.2478552143393711e-10, c = 2.917586838163783e-09;
        s = s * t - 3.5427063691946006e-08, c = c * t - 3.896898547431389e-07;
        s = s * t + 3.897192631947057e-06, c = c * t + 3.5074728737497264e-05;
        s = s * t - 0.0002805979288638135, c = c * t - 0.001964185500621655;
        s = s * t + 0.011785113019757449, c = c * t + 0.05892556509860409;
        s = s * t - 0.23570226039551515, c = c * t - 0.7071067811865369;
        s = s * t + 1.4142135623730951, c = c * t + 1.414213562373095;
        s *= x;
        double r = cosines[i], rs = r * s; /* The radii come in the place of the cosines. */
        cosines[i] = r - rs * s;
        sines[i] = rs * c;
    }
}

typedef struct { double std, grid, scale; } law;

/* Adding the anchor rounds to the grid: in float64 no finer digits remain beside it.  The sum of
 * the two rounded numbers is then exact.  NaN fails both comparisons and stays.
 * `out` is `sums` or apart from it, so that no step of the loop depends on another. */
#define DEFINE(real)                                                                               \
    static void add_##real(const double *noise, const real *sums, real *out, law l) {              \
        double anchor = 0x1.8p52 * l.grid;                                                         \
        real limit = (real)(0x1p50 * l.grid);                                                      \
        _Pragma("GCC ivdep") for (int i = 0; i < 2 * BLOCK; i++) {                                 \
            real x = sums[i];                                                                      \
            x = x > limit ? limit : x;                                                             \
            x = x < -limit ? -limit : x;                                                           \
            out[i] = (real)(((x - anchor) + (noise[i] * l.std + anchor)) * l.scale);               \
        }                                                                                          \
    }
DEFINE(float)
DEFINE(double)

/* Sums that have a stream of their own. */
typedef struct { const void *sums; void *out; int64_t count, is_double; } piece;

static void add_to_block(const double *noise, const piece *p, int64_t start, law l) {
    size_t size = p->is_double ? sizeof(double) : sizeof(float);
    const char *sums = (const char *)p->sums + (size_t)start * size;
    char *out = (char *)p->out + (size_t)start * size;
    if (p->count - start < 2 * BLOCK) { /* The rest of the piece: as a whole block, aside. */
        double rest[2 * BLOCK] = {0};
        piece aside = {rest, rest, 2 * BLOCK, p->is_double};
        memcpy(rest, sums, (size_t)(p->count - start) * size);
        add_to_block(noise, &aside, 0, l);
        memcpy(out, rest, (size_t)(p->count - start) * size);
    } else if (p->is_double) {
        add_double(noise, (const double *)sums, (double *)out, l);
    } else {
        add_float(noise, (const float *)sums, (float *)out, l);
    }
}

/* From given words: as many as the entries, up to a whole block. */
void psac_add_words(const piece *p, const uint64_t *words, law l) {
    double noise[2 * BLOCK];
    for (int64_t start = 0; start < p->count; start += 2 * BLOCK) {
        for (int i = 0; i < BLOCK; i += 8) eight_radii(words + start + i, noise + i);
        rotate(noise, words + start + BLOCK, noise + BLOCK);
        add_to_block(noise, p, start, l);
    }
}

#if defined(__AES__) && defined(__SSSE3__)
#include "aes.h"

int psac_makes_keystream(void) { return 1; }

typedef struct {
    const piece *pieces;
    int64_t count, taken; /* Pieces, and how many parts of them some thread has. */
    const uint8_t *key;
    uint64_t first_nonce;
    law law;
} work;

/* Takes parts of pieces, which other threads take too, until none is left.  While radii are computed
 * from the words of one block, those of the next are made: AES and arithmetic are done by different
 * parts of the processor. */
void psac_add_noise(work *w) {
    schedule keys = expand(w->key);
    double noise[2 * BLOCK];
    uint64_t words[2][2 * BLOCK];
    for (int64_t i; (i = __atomic_fetch_add(&w->taken, 1, __ATOMIC_RELAXED)) < w->count * PARTS;) {
        const piece *p = &w->pieces[i / PARTS];
        int64_t start = i % PARTS * PART, stop = start + PART;
        if (stop > p->count || i % PARTS == PARTS - 1) stop = p->count; /* The last has the rest. */
        stream s = open_stream(&keys, w->first_nonce + (uint64_t)(i / PARTS), start);
        for (int k = 0; k < BLOCK; k += 8) sixteen_words(&s, words[0] + 2 * k);
        for (int now = 0; start < stop; start += 2 * BLOCK, now = !now) {
            for (int k = 0; k < BLOCK; k += 8) {
                sixteen_words(&s, words[!now] + 2 * k);
                eight_radii(words[now] + k, noise + k);
            }
            rotate(noise, words[now] + BLOCK, noise + BLOCK);
            add_to_block(noise, p, start, w->law);
        }
    }
}
#else
int psac_makes_keystream(void) { return 0; }
#endif
