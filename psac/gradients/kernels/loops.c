/* Squared norms of per-sample gradients, one sample at a time while it is in the cache.
 *
 * loops.py says what is computed; here is how.  Vectors have W lanes; what is accumulated stays in
 * registers, which is what the sizes of tiles are for. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
enum { W = 16, LINES = 12, FEW = 4, LEFT = 4, RIGHT = 4 };
#define LANES(F, s)                                                                                \
    F(0, s), F(1, s), F(2, s), F(3, s), F(4, s), F(5, s), F(6, s), F(7, s), F(8, s), F(9, s),      \
        F(10, s), F(11, s), F(12, s), F(13, s), F(14, s), F(15, s)
#else
enum { W = 8, LINES = 6, FEW = 2, LEFT = 2, RIGHT = 4 };
#define LANES(F, s) F(0, s), F(1, s), F(2, s), F(3, s), F(4, s), F(5, s), F(6, s), F(7, s)
#endif
typedef float vec __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(8 * W)));
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__((a) == (b))){__VA_ARGS__})
#endif
#define INLINE static inline __attribute__((always_inline))

int64_t psac_lanes(void) { return W; }

/* --- Threads: each takes some samples, until none are left ---------------------------------------
 * The functions that they run are `psac_...(given, memory, first, last)`: what is given, as a
 * struct; memory of this thread, for what lives no longer than the call; which samples. */

typedef void Part(const void *given, void *memory, int64_t first, int64_t last);
typedef struct {
    Part *part;
    const void *given;
    int64_t bytes, samples, step, taken, failed; /* of memory, for each thread; see above */
} Work;

void psac_share(Work *w) {
    void *memory = aligned_alloc(64, (size_t)(w->bytes + 64) / 64 * 64);
    if (!memory) w->failed = 1;
    while (memory) {
        int64_t first = __atomic_fetch_add(&w->taken, w->step, __ATOMIC_RELAXED);
        int64_t last = first + w->step < w->samples ? first + w->step : w->samples;
        if (first >= last) break;
        w->part(w->given, memory, first, last);
    }
    free(memory);
}

static double total(vec values) {
    double sum = 0;
    for (int w = 0; w < W; w++) sum += values[w];
    return sum;
}

/* A sum that cancels almost wholly has lost its digits: of its mass less than `least` is left. */
typedef struct {
    double least;
    int64_t found; /* whether there was one */
} Guard;

static void watch(Guard *guard, double sum, double mass) {
    if (sum < guard->least * mass) __atomic_store_n(&guard->found, 1, __ATOMIC_RELAXED);
}

#include "loops_convolution.h"
#include "loops_pooling.h"
#include "loops_recurrence.h"

typedef struct {
    const float *start;
    int64_t sample, row, width; /* distances between samples and rows; numbers in a row */
} Rows;

/* --- Gram forms: sum over positions p, q of <a_p, a_q> <b_p, b_q> -------------------------------
 * Both factors are symmetric: tiles below the diagonal are left out, those above count twice. */

#define LOW(k, s) ((k) % (2 * (s)) < (s) ? (k) : W + (k) - (s))
#define HIGH(k, s) (LOW(k, s) + (s))
#define HALVE(s)                                                                                   \
    for (int i = 0; i < W / (2 * s); i++)                                                          \
        v[i] = SHUFFLE(v[2 * i], v[2 * i + 1], LANES(LOW, s)) +                                    \
               SHUFFLE(v[2 * i], v[2 * i + 1], LANES(HIGH, s));

/* W vectors to one: lane k is the sum of v[k]. */
INLINE vec totals(vec *v) {
    HALVE(1)
    HALVE(2)
    HALVE(4)
#if defined(__AVX512F__)
    HALVE(8)
#endif
    return v[0];
}

typedef struct {
    const float *a, *b;
    int64_t row, width;
    int left, right, whole; /* rows of a and of b; whether it fills all registers */
} Tile;

INLINE Tile tile(const Rows *m, const float *sample, int64_t p, int64_t q, int64_t positions) {
    int left = positions - p < LEFT ? (int)(positions - p) : LEFT;
    int right = positions - q < RIGHT ? (int)(positions - q) : RIGHT;
    int whole = left == LEFT && right == RIGHT && m->width % W == 0;
    return (Tile){sample + p * m->row, sample + q * m->row, m->row, m->width, left, right, whole};
}

INLINE vec some(const float *row, int64_t count) {
    vec values = {0};
    memcpy(&values, row, sizeof(float) * count);
    return values;
}

INLINE void add_products(Tile t, int64_t k, int left, int right, vec *sums) {
    vec y[RIGHT];
    for (int j = 0; j < right; j++) y[j] = *(const vec *)(t.b + j * t.row + k);
    for (int i = 0; i < left; i++) {
        vec x = *(const vec *)(t.a + i * t.row + k);
        for (int j = 0; j < right; j++) sums[i * RIGHT + j] += x * y[j];
    }
}

/* sums[i * RIGHT + j] is the product of rows i and j, still spread over the lanes. */
INLINE void products(Tile t, vec *sums) {
    memset(sums, 0, sizeof(vec) * W);
    for (int64_t k = 0; k < t.width; k += W) add_products(t, k, LEFT, RIGHT, sums);
}

static vec inner_of_part(Tile t) {
    vec sums[W];
    memset(sums, 0, sizeof sums);
    int64_t k = 0, rest = t.width % W;
    for (; k < t.width - rest; k += W) add_products(t, k, t.left, t.right, sums);
    for (int i = 0; i < t.left; i++)
        for (int j = 0; j < t.right; j++)
            sums[i * RIGHT + j] += some(t.a + i * t.row + k, rest) * some(t.b + j * t.row + k, rest);
    return totals(sums);
}

/* Lane i * RIGHT + j is the product of rows i and j. */
INLINE vec inner(Tile t) {
    if (!t.whole) return inner_of_part(t);
    vec sums[W];
    products(t, sums);
    return totals(sums);
}

/* The same, times factors, added up; the sum over lanes is left to the end. */
INLINE vec inner_times(Tile t, const float *factors) {
    if (!t.whole) return inner_of_part(t) * *(const vec *)factors;
    vec sums[W], even = {0}, odd = {0};
    products(t, sums);
    for (int k = 0; k < W; k += 2) {
        even += factors[k] * sums[k];
        odd += factors[k + 1] * sums[k + 1];
    }
    return even + odd;
}

/* How many numbers `known` holds for a sample. */
int64_t psac_gram_numbers(int64_t positions) {
    int64_t tiles = 0;
    for (int64_t q = 0; q < positions; q += RIGHT) {
        int64_t rows = q + RIGHT < positions ? q + RIGHT : positions;
        tiles += (rows + LEFT - 1) / LEFT;
    }
    return tiles * W;
}

static double square(const float *row, int64_t width) {
    vec sums[4] = {{0}};
    int64_t k = 0, rest = width % W;
    for (; k + 4 * W <= width; k += 4 * W)
        for (int i = 0; i < 4; i++) {
            vec x = *(const vec *)(row + k + i * W);
            sums[i] += x * x;
        }
    for (; k < width - rest; k += W) sums[0] += *(const vec *)(row + k) * *(const vec *)(row + k);
    vec last = some(row + k, rest);
    return total((sums[0] + sums[1]) + (sums[2] + sums[3]) + last * last);
}

static void add_rows(const Rows *m, const float *row, int64_t count, float *restrict sums) {
    for (; count > 0; count--, row += m->row) {
        const float *restrict its = row;
        for (int64_t k = 0; k < m->width; k++) sums[k] += its[k];
    }
}

/* Asks for some columns of some rows, so that they are near when they are needed. */
enum { LINE = 16 }; /* numbers that come together */

INLINE void ask_for(const Rows *m, const float *row, int64_t count, int64_t from, int64_t step) {
    int64_t end = from + step < m->width ? from + step : m->width;
    for (; count > 0; count--, row += m->row)
        for (int64_t k = from; k < end; k += LINE) __builtin_prefetch(row + k, 0, 2);
}

/* How many columns, if all are asked for in so many parts. */
static int64_t columns(const Rows *m, int64_t parts) {
    return (m->width + LINE * parts - 1) / (LINE * parts) * LINE;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where the rows of a sample begin: at starts[n] if samples have different numbers of them. */
static const float *sample_of(const Rows *m, int64_t n, const int64_t *starts) {
    return m->start + (starts ? starts[n] * m->row : n * m->sample);
}

/* squares[n] is the sum, mass[n] its diagonal: what it would be without cancellation.
 * starts, if not null, are n + 1 numbers of rows, and positions is the largest of their distances;
 * known, if not null, takes the inner products of a, or has them if `filled`; sums, if not null,
 * takes [n, width of b], the sums of the rows of b, and sum_squares their squared norms. */
typedef struct {
    const Rows *a, *b;
    int64_t positions;
    const int64_t *starts;
    float *squares, *mass, *known;
    int64_t filled;
    float *sums, *sum_squares;
    Guard *guard;
} Gram;

/* Whether one factor is so large that what its partner's squares have lost to underflow counts. */
INLINE int extreme(double of_a, double of_b) {
    return (of_a > 1e9 && of_b < 1e-9) || (of_b > 1e9 && of_a < 1e-9);
}

/* Numbers that a thread needs: the inner products of a for one column of tiles.  All of them are
 * formed before those of b, so that the rows of one column, of a or of b, stay in the nearest cache. */
int64_t psac_gram_bytes(int64_t positions) {
    return sizeof(float) * W * ((positions + RIGHT) / LEFT + 1);
}

void psac_gram(const void *given, void *memory, int64_t first, int64_t last) {
    const Gram *its = given;
    const Rows *a = its->a, *b = its->b;
    const int64_t *starts = its->starts;
    float *known = its->known, *sums = its->sums;
    int64_t positions = its->positions, numbers = psac_gram_numbers(positions);
    for (int64_t n = first; n < last; n++) {
        const float *its_a = sample_of(a, n, starts), *its_b = sample_of(b, n, starts);
        float *column = known ? known + n * numbers : memory;
        double beside = 0, mass = 0; /* pairs p < q, and p = q */
        float of_a = 0, of_b = 0; /* the longest rows, squared */
        if (starts) positions = starts[n + 1] - starts[n];
        if (sums) memset(sums + n * b->width, 0, sizeof(float) * b->width);
        for (int64_t q = 0; q < positions; q += RIGHT) {
            int64_t next = q + RIGHT, more = least(positions - next, RIGHT);
            int64_t end = least(next, positions), parts = (end + LEFT - 1) / LEFT;
            int64_t step_a = columns(a, parts), step_b = columns(b, parts);
            vec above = {0};
            for (int64_t k = 0; k < parts && !its->filled; k++) {
                ask_for(a, its_a + next * a->row, more, k * step_a, step_a);
                *(vec *)(column + k * W) = inner(tile(a, its_a, k * LEFT, q, positions));
            }
            for (int64_t k = 0, p = 0; k < parts; k++, p += LEFT) {
                ask_for(b, its_b + next * b->row, more, k * step_b, step_b);
                Tile other = tile(b, its_b, p, q, positions);
                if (p + LEFT <= q) {
                    above += inner_times(other, column + k * W);
                    continue;
                }
                vec x = *(const vec *)(column + k * W), y = inner(other), z = x * y;
                for (int i = 0; i < other.left; i++)
                    for (int j = 0; j < other.right; j++)
                        if (p + i < q + j) above[0] += z[i * RIGHT + j];
                        else if (p + i == q + j) {
                            int at = i * RIGHT + j;
                            mass += z[at];
                            of_a = x[at] > of_a ? x[at] : of_a;
                            of_b = y[at] > of_b ? y[at] : of_b;
                        }
            }
            if (known) column += parts * W;
            if (sums) add_rows(b, its_b + q * b->row, end - q, sums + n * b->width);
            beside += total(above);
        }
        its->squares[n] = extreme(of_a, of_b) ? INFINITY : 2 * beside + mass;
        its->mass[n] = mass;
        watch(its->guard, 2 * beside + mass, mass);
        if (its->sum_squares) its->sum_squares[n] = square(sums + n * b->width, b->width);
    }
}

/* --- One position a sample: its gradient is a_n x b_n --------------------------------------------
 * products[n] is |a_n|^2 |b_n|^2, squares[n] is |b_n|^2. */

typedef struct {
    const Rows *a, *b;
    float *products, *squares;
} Pairs;

void psac_pairs(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const Pairs *its = given;
    for (int64_t n = first; n < last; n++) {
        double of_b = square(its->b->start + n * its->b->row, its->b->width);
        double of_a = square(its->a->start + n * its->a->row, its->a->width);
        its->products[n] = extreme(of_a, of_b) ? INFINITY : of_a * of_b;
        its->squares[n] = of_b;
    }
}

/* --- Rows times the weights of their samples, where they lie, and their sums ---------------------
 * GROUP samples at a time have a row of sums of their own, so that no sum grows long. */

enum { GROUP = 64, TOGETHER = 4 };

typedef struct {
    float *rows;
    int64_t width;
    const float *weights;
    float *sums;
} Scaling;

int64_t psac_group(void) { return GROUP; }

INLINE void scale(const Scaling *its, int64_t n, int count, float *restrict sums) {
    int64_t width = its->width;
    float *restrict rows = its->rows + n * width;
    const float *w = its->weights + n;
    for (int64_t k = 0; k < width; k++) {
        float sum = 0;
        for (int i = 0; i < count; i++) sum += rows[i * width + k] *= w[i];
        sums[k] += sum;
    }
}

void psac_scaling(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const Scaling *its = given;
    for (int64_t group = first; group < last;) {
        int64_t end = group + GROUP < last ? group + GROUP : last, n = group;
        float *sums = its->sums + group / GROUP * its->width;
        memset(sums, 0, sizeof(float) * its->width);
        for (; n + TOGETHER <= end; n += TOGETHER) scale(its, n, TOGETHER, sums);
        for (; n < end; n++) scale(its, n, 1, sums);
        group = end;
    }
}

/* --- Rows that are not all zero ----------------------------------------------------------------- */

static int is_zero(const float *row, int64_t width) {
    for (int64_t k = 0; k < width; k += 4 * W) {
        int64_t end = k + 4 * W < width ? k + 4 * W : width;
        uint32_t any = 0, bits;
        for (int64_t i = k; i < end; i++) {
            memcpy(&bits, row + i, sizeof bits);
            any |= bits << 1; /* without the sign */
        }
        if (any) return 0;
    }
    return 1;
}

typedef struct {
    const Rows *rows;
    int64_t positions;
    uint8_t *alive;
    const int64_t *starts;
    float *to;
} Some;

/* How many of some rows of n samples, so many in all, are not all zero. */
int64_t psac_some_alive(const Rows *m, int64_t n, int64_t positions, int64_t looks) {
    enum { FAR = 79 }; /* a prime number: positions are looked at in no order */
    int64_t found = 0;
    for (int64_t k = 0; k < looks && positions > 0; k++)
        found += !is_zero(m->start + k * n / looks * m->sample + k * FAR % positions * m->row,
                          m->width);
    return found;
}

void psac_alive(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const Some *its = given;
    const Rows *m = its->rows;
    for (int64_t n = first; n < last; n++)
        for (int64_t p = 0; p < its->positions; p++)
            its->alive[n * its->positions + p] =
                !is_zero(m->start + n * m->sample + p * m->row, m->width);
}

/* Copies those that are alive; the first of sample n becomes row starts[n] of `to`. */
void psac_gather(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const Some *its = given;
    const Rows *m = its->rows;
    for (int64_t n = first; n < last; n++) {
        float *to = its->to + its->starts[n] * m->width;
        for (int64_t p = 0; p < its->positions; p++) {
            if (!its->alive[n * its->positions + p]) continue;
            memcpy(to, m->start + n * m->sample + p * m->row, sizeof(float) * m->width);
            to += m->width;
        }
    }
}

/* --- Tables: row index[n][p] gets values[n][p]; where the index is below zero, nothing does --------
 * psac_lookup: squares[n] is the squared norm of what sample n adds to the table, mass[n] what it
 * would be if nothing cancelled.  Positions are sorted by their index, so that those of the same row
 * stand together. */

typedef struct {
    const Rows *values;
    const int64_t *index;
    int64_t positions;
    float *squares, *mass;
} Lookup;

int64_t psac_lookup_bytes(int64_t positions, int64_t width) {
    return sizeof(uint64_t) * positions + sizeof(float) * width;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void psac_lookup(const void *given, void *memory, int64_t first, int64_t last) {
    const Lookup *its = given;
    const Rows *v = its->values;
    uint64_t *keys = memory; /* index and position */
    float *sum = (float *)(keys + its->positions);
    for (int64_t n = first; n < last; n++) {
        const float *sample = v->start + n * v->sample;
        const int64_t *index = its->index + n * its->positions;
        int64_t count = 0, in_order = 1;
        double squares = 0, mass = 0;
        for (int64_t p = 0; p < its->positions; p++) {
            if (index[p] < 0) continue;
            keys[count] = (uint64_t)index[p] << 32 | (uint64_t)p;
            if (count && keys[count] < keys[count - 1]) in_order = 0;
            count++;
        }
        if (!in_order) qsort(keys, (size_t)count, sizeof *keys, ascending);
        for (int64_t k = 0, next; k < count; k = next) {
            const float *row = sample + (int64_t)(uint32_t)keys[k] * v->row;
            for (next = k + 1; next < count && keys[next] >> 32 == keys[k] >> 32; next++) {
                if (next == k + 1) memcpy(sum, row, sizeof(float) * v->width);
                const float *other = sample + (int64_t)(uint32_t)keys[next] * v->row;
                add_rows(v, other, 1, sum);
                mass += square(other, v->width);
            }
            double of_row = square(row, v->width);
            squares += next > k + 1 ? square(sum, v->width) : of_row;
            mass += of_row;
        }
        its->squares[n] = squares;
        its->mass[n] = mass;
    }
}

/* psac_lookup_sum: adds weights[n] * values[n][p] to the table.  Threads take columns, COLUMNS at a
 * time, in place of samples, so that no two write to the same number. */

enum { COLUMNS = 64 };

typedef struct {
    const Rows *values;
    const int64_t *index;
    int64_t samples, positions;
    const float *weights;
    float *table;
} LookupSum;

int64_t psac_lookup_columns(void) { return COLUMNS; }

void psac_lookup_sum(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const LookupSum *its = given;
    const Rows *v = its->values;
    int64_t from = first * COLUMNS, end = least(last * COLUMNS, v->width);
    for (int64_t n = 0, at = 0; n < its->samples; n++) {
        float weight = its->weights[n];
        for (int64_t p = 0; p < its->positions; p++, at++) {
            if (its->index[at] < 0) continue;
            const float *restrict row = v->start + n * v->sample + p * v->row;
            float *restrict to = its->table + its->index[at] * v->width;
            for (int64_t k = from; k < end; k++) to[k] += weight * row[k];
        }
    }
}

/* --- Layer norm: plain[n] = sum over p of g_p, scaled[n] = sum of g_p (x_p - mean_p) rstd_p -------
 * mean and rstd are [n, positions], plain and scaled [n, width], followed by their squared norms. */

static void add_normalised(const float *restrict g, const float *restrict x, float mean, float rstd,
                           int64_t width, float *restrict plain, float *restrict scaled) {
    for (int64_t k = 0; k < width; k++) {
        plain[k] += g[k];
        scaled[k] += g[k] * ((x[k] - mean) * rstd);
    }
}

typedef struct {
    const Rows *g, *x;
    const float *mean, *rstd;
    int64_t positions;
    float *plain, *plain_squares, *scaled, *scaled_squares;
} LayerNorm;

void psac_layer_norm(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const LayerNorm *its = given;
    const Rows *g = its->g, *x = its->x;
    const float *mean = its->mean, *rstd = its->rstd;
    int64_t positions = its->positions;
    for (int64_t n = first; n < last; n++) {
        float *plain = its->plain + n * g->width, *scaled = its->scaled + n * g->width;
        memset(plain, 0, sizeof(float) * g->width);
        memset(scaled, 0, sizeof(float) * g->width);
        for (int64_t p = 0, at = n * positions; p < positions; p++, at++)
            add_normalised(g->start + n * g->sample + p * g->row,
                           x->start + n * x->sample + p * x->row, mean[at], rstd[at], g->width,
                           plain, scaled);
        its->plain_squares[n] = square(plain, g->width);
        its->scaled_squares[n] = square(scaled, g->width);
    }
}

/* --- Group norm: out[0][n][c] = sum over p of g, out[1][n][c] = sum of g (x - mean) rstd ---------
 * g and x are [n, channels, positions], mean and rstd [n, groups], out [2, num_samples, channels].
 */

typedef struct {
    const float *g, *x, *mean, *rstd;
    int64_t channels, groups, positions, num_samples;
    float *out;
} GroupNorm;

void psac_group_norm(const void *given, void *memory, int64_t first, int64_t last) {
    (void)memory;
    const GroupNorm *its = given;
    const float *g = its->g, *x = its->x, *mean = its->mean, *rstd = its->rstd;
    int64_t channels = its->channels, groups = its->groups, positions = its->positions;
    float *out = its->out;
    for (int64_t c = first * channels; c < last * channels; c++, out++) {
        int64_t group = c / (channels / groups), p = 0;
        vec plain = {0}, scaled = {0};
        for (; p + W <= positions; p += W) {
            vec grad = *(const vec *)(g + c * positions + p);
            plain += grad;
            scaled += grad * (*(const vec *)(x + c * positions + p) - mean[group]);
        }
        for (; p < positions; p++) {
            plain[0] += g[c * positions + p];
            scaled[0] += g[c * positions + p] * (x[c * positions + p] - mean[group]);
        }
        out[first * channels] = total(plain);
        out[(first + its->num_samples) * channels] = total(scaled) * rstd[group];
    }
}

/* A checksum of each block of memory: in each lane the sum of its words and the sum of the sums,
 * which tells their order.  Four vectors at a time, so that none waits for another.
 */

typedef uint64_t words __attribute__((vector_size(64), aligned(1), may_alias));
enum { VECTORS = 4, STRIDE = 64 * VECTORS };

void psac_checksums(int64_t count, const int64_t *addresses, const int64_t *sizes, int64_t *out) {
    for (int64_t k = 0; k < count; k++) {
        const unsigned char *bytes = (const unsigned char *)addresses[k];
        words plain[VECTORS] = {{0}}, ordered[VECTORS] = {{0}};
        uint64_t total = (uint64_t)sizes[k];
        int64_t whole = sizes[k] / STRIDE * STRIDE;
        for (int64_t i = 0; i < whole; i += STRIDE)
            for (int v = 0; v < VECTORS; v++) {
                plain[v] += *(const words *)(bytes + i + 64 * v);
                ordered[v] += plain[v];
            }
        for (int v = 0; v < VECTORS; v++)
            for (int lane = 0; lane < 8; lane++)
                total = (total + plain[v][lane]) * 0x9E3779B97F4A7C15u + ordered[v][lane];
        for (int64_t i = whole; i < sizes[k]; i++)
            total = (total + bytes[i]) * 0x9E3779B97F4A7C15u;
        out[k] = (int64_t)total;
    }
}
