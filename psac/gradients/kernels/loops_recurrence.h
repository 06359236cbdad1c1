/* The part of loops.c that is about recurrent layers. */

/* --- LSTM: all steps of some rows (a record and a sequence each), forward or backward -----------
 * Gates are i, f, g, o, of H numbers each; H fills whole vectors.  Rows go together where they can,
 * so that what is read of the weights serves all of them. */

typedef int32_t ints __attribute__((vector_size(4 * W)));
enum { ROWS = 4 };

INLINE vec all(float x) { return x - (vec){0}; }
INLINE vec pick(ints which, vec yes, vec no) { return (vec)((which & (ints)yes) | (~which & (ints)no)); }

/* To about 1e-7, by 2^n times a polynomial. */
INLINE vec exponential(vec x) {
    x = pick(x > all(87), all(87), x), x = pick(x < all(-87), all(-87), x);
    vec magic = all(12582912.0f), n = x * 1.44269504f + magic - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f, p = p * r + 4.1665795894e-2f, p = p * r + 1.6666665459e-1f;
    p = (p * r + 5.0000001201e-1f) * r * r + r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    return p * (vec)power;
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE vec tangent(vec x) {
    vec square = x * x, twice = exponential(2.0f * x);
    vec small = x + x * square * (-1 / 3.0f + square * (2 / 15.0f - square * (17 / 315.0f)));
    return pick(square < all(0.03f), small, 1.0f - 2.0f / (twice + 1.0f));
}

/* out[r] = add[r] + x[r] w, of `inner` by `outer`. */
INLINE void product_of_rows(const float *const *x, const float *w, int64_t inner, int64_t outer,
                            const float *const *add, float *const *out, int count) {
    int64_t j = 0;
    for (; j + 2 * W <= outer; j += 2 * W) {
        vec sums[ROWS][2];
        for (int r = 0; r < count; r++)
            for (int v = 0; v < 2; v++)
                sums[r][v] = add[r] ? *(const vec *)(add[r] + j + v * W) : (vec){0};
        for (int64_t k = 0; k < inner; k++) {
            vec first = *(const vec *)(w + k * outer + j), second = *(const vec *)(w + k * outer + j + W);
            for (int r = 0; r < count; r++)
                sums[r][0] += x[r][k] * first, sums[r][1] += x[r][k] * second;
        }
        for (int r = 0; r < count; r++)
            for (int v = 0; v < 2; v++) *(vec *)(out[r] + j + v * W) = sums[r][v];
    }
    for (; j < outer; j += W)
        for (int r = 0; r < count; r++) {
            vec sum = add[r] ? *(const vec *)(add[r] + j) : (vec){0};
            for (int64_t k = 0; k < inner; k++) sum += x[r][k] * *(const vec *)(w + k * outer + j);
            *(vec *)(out[r] + j) = sum;
        }
}

static void product(const float *const *x, const float *w, int64_t inner, int64_t outer,
                    const float *const *add, float *const *out, int count) {
    if (count == ROWS) product_of_rows(x, w, inner, outer, add, out, ROWS);
    else
        for (int r = 0; r < count; r++)
            product_of_rows(x + r, w, inner, outer, add + r, out + r, 1);
}

typedef struct {
    float *gates, *states, *cells, *squashed;     /* [n, t, b, 4h], [t + 1, m, h] twice, [t, m, h] */
    const float *weight;                          /* forward [h, 4h], backward [4h, h] */
    int64_t width, steps, rows, sequences;        /* h, t, m = n x b, b */
    const float *of_outputs, *of_cell;            /* gradients [n, t, b, h] and [m, h] */
    float *of_gates, *of_first_state, *of_first_cell; /* [n, t, b, 4h], and [m, h] twice */
} Lstm;

/* Where row m is at a step of [n, t, b, size]. */
static int64_t at(const Lstm *s, int64_t m, int64_t t, int64_t size) {
    int64_t b = s->sequences;
    return ((m / b * s->steps + t) * b + m % b) * size;
}

void psac_lstm(const void *given, void *memory, int64_t first, int64_t last) {
    const Lstm *s = given;
    int64_t h = s->width, step = s->rows * h;
    for (int64_t m = first; m < last; m += ROWS)
        for (int64_t t = 0; t < s->steps; t++) {
            int count = last - m < ROWS ? (int)(last - m) : ROWS;
            const float *before[ROWS], *add[ROWS];
            float *gates[ROWS];
            for (int r = 0; r < count; r++) {
                add[r] = gates[r] = s->gates + at(s, m + r, t, 4 * h);
                before[r] = s->states + t * step + (m + r) * h;
            }
            product(before, s->weight, h, 4 * h, add, gates, count);
            for (int r = 0; r < count; r++)
                for (int64_t j = 0; j < h; j += W) {
                    int64_t k = t * step + (m + r) * h + j;
                    vec *gate[4], c;
                    for (int g = 0; g < 4; g++) gate[g] = (vec *)(gates[r] + g * h + j);
                    for (int g = 0; g < 4; g++) *gate[g] = g == 2 ? tangent(*gate[g]) : sigmoid(*gate[g]);
                    c = *gate[1] * *(vec *)(s->cells + k) + *gate[0] * *gate[2];
                    *(vec *)(s->cells + k + step) = c;
                    *(vec *)(s->squashed + k) = tangent(c);
                    *(vec *)(s->states + k + step) = *gate[3] * *(vec *)(s->squashed + k);
                }
        }
}

void psac_lstm_backward(const void *given, void *memory, int64_t first, int64_t last) {
    const Lstm *s = given;
    int64_t h = s->width, step = s->rows * h;
    for (int64_t m = first; m < last; m += ROWS) {
        int count = last - m < ROWS ? (int)(last - m) : ROWS;
        const float *after[ROWS], *none[ROWS] = {0};
        float *of_state[ROWS];
        for (int r = 0; r < count; r++) {
            of_state[r] = s->of_first_state + (m + r) * h;
            memset(of_state[r], 0, sizeof(float) * h);
            memcpy(s->of_first_cell + (m + r) * h, s->of_cell + (m + r) * h, sizeof(float) * h);
        }
        for (int64_t t = s->steps - 1; t >= 0; t--) {
            for (int r = 0; r < count; r++) {
                const float *gates = s->gates + at(s, m + r, t, 4 * h);
                const float *passing = s->of_outputs + at(s, m + r, t, h);
                float *found = s->of_gates + at(s, m + r, t, 4 * h);
                after[r] = found;
                for (int64_t j = 0; j < h; j += W) {
                    int64_t k = t * step + (m + r) * h + j;
                    vec gate[4], *cell = (vec *)(s->of_first_cell + (m + r) * h + j);
                    for (int g = 0; g < 4; g++) gate[g] = *(const vec *)(gates + g * h + j);
                    vec d = *(vec *)(of_state[r] + j) + *(const vec *)(passing + j);
                    vec squashed = *(vec *)(s->squashed + k);
                    vec c = *cell + d * gate[3] * (1.0f - squashed * squashed);
                    *(vec *)(found + j) = c * gate[2] * gate[0] * (1.0f - gate[0]);
                    *(vec *)(found + h + j) = c * *(vec *)(s->cells + k) * gate[1] * (1.0f - gate[1]);
                    *(vec *)(found + 2 * h + j) = c * gate[0] * (1.0f - gate[2] * gate[2]);
                    *(vec *)(found + 3 * h + j) = d * squashed * gate[3] * (1.0f - gate[3]);
                    *cell = c * gate[1];
                }
            }
            product(after, s->weight, 4 * h, h, none, of_state, count);
        }
    }
}
