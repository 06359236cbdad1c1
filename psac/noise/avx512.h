/* The radii of loops.c for processors with AVX-512, eight at a time.
 *
 * Logarithm and root start from a table of sixteen numbers in registers and from a rough inverse
 * root: the exact division and root that plain C has are the slowest instructions there are.  They
 * err by a few 2^-52, as those do. */
#include <immintrin.h>

#define ALL _mm512_set1_pd
#define MULTIPLY_ADD _mm512_fmadd_pd

/* For each sixteenth of [1, 2): c near the inverse of its numbers, and 2 log(c).  The last c is
 * exactly 1/2, so that -2 log(u) has small relative error as u goes to 1. */
static const double INVERSES[16] = {
    0.96875,    0.9140625,   0.865234375, 0.8203125,  0.78125,     0.744140625,
    0.7109375,  0.681640625, 0.65234375,  0.626953125, 0.603515625, 0.58203125,
    0.560546875, 0.54296875, 0.525390625, 0.5};
static const double LOGS[16] = {
    -0.0634973966291606, -0.1797126582437221, -0.2895097099887443, -0.3961398275241876,
    -0.49372015586305157, -0.5910504998256136, -0.6823415148055343, -0.7665054056741613,
    -0.8543672641256147, -0.9337670038189838, -1.0099666962835245, -1.0824622770682066,
    -1.1576848185597735, -1.2214070226977414, -1.2872264908753372, -1.3862943611198906};

static inline __m512d lookup(const double *table, __m512i index) {
    return _mm512_permutex2var_pd(_mm512_loadu_pd(table), index, _mm512_loadu_pd(table + 8));
}

/* -2 log|v| for 2^-64 <= |v| <= 1: |v| = 2^e m and m c = 1 + f with |f| <= 1/32. */
static inline __m512d minus_two_log(__m512d v) {
    __m512d e = _mm512_getexp_pd(v);
    __m512d m = _mm512_getmant_pd(v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
    __m512i sixteenth = _mm512_srli_epi64(_mm512_castpd_si512(v), 48); /* Its last four bits. */
    __m512d f = MULTIPLY_ADD(m, lookup(INVERSES, sixteenth), ALL(-1)), p = ALL(0.2503910625335326);
    p = MULTIPLY_ADD(p, f, ALL(-0.2861487907953144));
    p = MULTIPLY_ADD(p, f, ALL(0.3333330945651252));
    p = MULTIPLY_ADD(p, f, ALL(-0.39999973470905953));
    p = MULTIPLY_ADD(p, f, ALL(0.5000000000466408));
    p = MULTIPLY_ADD(p, f, ALL(-0.6666666667184883));
    p = MULTIPLY_ADD(p, f, ALL(0.9999999999999986));
    p = MULTIPLY_ADD(p, f, ALL(-1.9999999999999984));
    __m512d rest = MULTIPLY_ADD(e, ALL(-2 * 0.69314718055994530942), lookup(LOGS, sixteenth));
    return MULTIPLY_ADD(p, f, rest);
}

/* From 14 bits of 1 / sqrt(x): with y = (1 - e)^(1/2) / sqrt(x), four terms of (1 - e)^(-1/2). */
static inline __m512d square_root(__m512d x) {
    __m512d y = _mm512_rsqrt14_pd(x), r = _mm512_mul_pd(x, y);
    __m512d e = _mm512_fnmadd_pd(r, y, ALL(1)), p = MULTIPLY_ADD(e, ALL(0.3125), ALL(0.375));
    return MULTIPLY_ADD(_mm512_mul_pd(r, e), MULTIPLY_ADD(p, e, ALL(0.5)), r);
}

static inline void eight_radii(const uint64_t *words, double *out) {
    __m512d a = _mm512_cvtepi64_pd(_mm512_loadu_si512(words));
    __m512d v = MULTIPLY_ADD(a, ALL(0x1p-63), ALL(0x1p-64)), sign = _mm512_and_pd(v, ALL(-0.0));
    __m512d x = _mm512_max_pd(minus_two_log(v), ALL(0x1p-100)); /* It may be 0, or round below. */
    _mm512_storeu_pd(out, _mm512_or_pd(square_root(x), sign));
}
