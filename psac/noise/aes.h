/* AES-128 in counter mode by the processor's instructions: what write_keystream in randomness.py
 * writes, made where it is used, so that it never leaves the nearest cache. */
#include <immintrin.h>

#if defined(__VAES__) && defined(__AVX512F__) && defined(__AVX512BW__) /* Four blocks at a time. */
typedef __m512i lanes;
#define LANES 4
#define COPIES(block) _mm512_broadcast_i32x4(block)
#define XOR _mm512_xor_si512
#define ADD _mm512_add_epi32
#define SHUFFLE _mm512_shuffle_epi8
#define ENCRYPT _mm512_aesenc_epi128
#define ENCRYPT_LAST _mm512_aesenclast_epi128
#define COUNT_UP _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3)
#else
typedef __m128i lanes;
#define LANES 1
#define COPIES(block) (block)
#define XOR _mm_xor_si128
#define ADD _mm_add_epi32
#define SHUFFLE _mm_shuffle_epi8
#define ENCRYPT _mm_aesenc_si128
#define ENCRYPT_LAST _mm_aesenclast_si128
#define COUNT_UP _mm_setzero_si128()
#endif

enum { TOGETHER = 8 / LANES }; /* Eight blocks, which are sixteen words, at a time. */

typedef struct { lanes round_keys[11]; } schedule;
typedef struct { const schedule *keys; lanes counters; } stream;

/* FIPS 197, 5.2: `assisted` has SubWord(RotWord(last word)) ^ Rcon as its last word. */
static inline __m128i next_round_key(__m128i key, __m128i assisted) {
    for (int i = 0; i < 3; i++) key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_shuffle_epi32(assisted, 0xff));
}

static schedule expand(const uint8_t *bytes) {
    schedule s;
    __m128i key = _mm_loadu_si128((const __m128i *)bytes);
    s.round_keys[0] = COPIES(key);
#define ROUND(i, constant)                                                                         \
    key = next_round_key(key, _mm_aeskeygenassist_si128(key, constant));                           \
    s.round_keys[i] = COPIES(key);
    ROUND(1, 0x01) ROUND(2, 0x02) ROUND(3, 0x04) ROUND(4, 0x08) ROUND(5, 0x10)
    ROUND(6, 0x20) ROUND(7, 0x40) ROUND(8, 0x80) ROUND(9, 0x1b) ROUND(10, 0x36)
#undef ROUND
    return s;
}

/* From counter block (nonce, 2) on, without the first `skipped` words, an even number: a counter
 * block makes two.  Its last four bytes count, here in the processor's order. */
static stream open_stream(const schedule *keys, uint64_t nonce, int64_t skipped) {
    int high = (int)__builtin_bswap32((uint32_t)(nonce >> 32));
    int low = (int)__builtin_bswap32((uint32_t)nonce), first = (int)(2 + skipped / 2);
    stream s = {keys, ADD(COPIES(_mm_setr_epi32(0, high, low, first)), COUNT_UP)};
    return s;
}

static inline void sixteen_words(stream *s, uint64_t *words) {
    const lanes big_endian =
        COPIES(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 14, 13, 12));
    const lanes *keys = s->keys->round_keys, further = COPIES(_mm_setr_epi32(0, 0, 0, LANES));
    lanes counters = s->counters, x[TOGETHER];
    for (int j = 0; j < TOGETHER; j++, counters = ADD(counters, further))
        x[j] = XOR(SHUFFLE(counters, big_endian), keys[0]);
    for (int round = 1; round < 10; round++)
        for (int j = 0; j < TOGETHER; j++) x[j] = ENCRYPT(x[j], keys[round]);
    for (int j = 0; j < TOGETHER; j++) x[j] = ENCRYPT_LAST(x[j], keys[10]);
    memcpy(words, x, sizeof x);
    s->counters = counters;
}
