/* The part of loops.c that is about convolutions. */

/* --- Convolutions: C[l][o] = sum over positions p of X[p + l] G[p][o] ---------------------------
 * with l = (c, i, j) a channel and a kernel offset.  X is read where it lies (no patches are
 * copied), G is transposed first.  A tile is some lines l by some vectors of output channels.
 * A sample may have several frames, such as copies of a picture: p runs over those of all. */

typedef struct {
    int64_t channels, height, width, out_channels, out_height, out_width, groups;
    int64_t kernel_height, kernel_width, stride_height, stride_width, pad_height, pad_width;
    int64_t dilation_height, dilation_width, frames;
    int64_t inputs_last, grads_last; /* whether channels stand last in memory, for one group */
} Geometry;

typedef struct {
    int64_t column, row, frame; /* from one output to the next in x, one row, one frame */
} Steps;

/* With a weight, the tile times it is added to `out`; without, `out` takes the tile, if it is not
 * null, and what is returned adds up to its squared norm. */
INLINE doubles lines(const float *x, const Geometry *s, const Steps *step, const int64_t *offsets,
                     const float *g, int64_t g_width, float *out, const float *weight,
                     int64_t wanted, int count, int vectors) {
    vec sums[LINES][2], squares[4] = {{0}}; /* four, for one would wait for itself */
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors; v++) sums[k][v] = (vec){0};
    int64_t column = step->column;
    for (int64_t f = 0; f < s->frames; f++, x += step->frame)
        for (int64_t i = 0; i < s->out_height; i++) {
            const float *at = x + i * step->row;
            int64_t j = 0;
            for (; j + 1 < s->out_width; j += 2, at += 2 * column, g += 2 * g_width) {
                vec first[2], second[2];
                for (int v = 0; v < vectors; v++) {
                    first[v] = *(const vec *)(g + v * W);
                    second[v] = *(const vec *)(g + g_width + v * W);
                }
                for (int k = 0; k < count; k++) {
                    float here = at[offsets[k]], next = at[offsets[k] + column];
                    for (int v = 0; v < vectors; v++) sums[k][v] += here * first[v];
                    for (int v = 0; v < vectors; v++) sums[k][v] += next * second[v];
                }
            }
            for (; j < s->out_width; j++, at += column, g += g_width)
                for (int k = 0; k < count; k++)
                    for (int v = 0; v < vectors; v++)
                        sums[k][v] += at[offsets[k]] * *(const vec *)(g + v * W);
        }
    for (int k = 0; k < count; k++)
        for (int v = 0; v < vectors && k < wanted; v++) {
            vec *to = (vec *)(out + k * g_width + v * W);
            if (weight) *to += *weight * sums[k][v];
            else squares[(2 * k + v) % 4] += sums[k][v] * sums[k][v];
            if (out && !weight) *to = sums[k][v];
        }
    vec all = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    return __builtin_convertvector(all, doubles);
}

/* One function for each size of tile, so that its loops are unrolled; of the lines of the last, only
 * some are wanted. */
#define TILE(name, count, vectors)                                                                 \
    static doubles name(const float *x, const Geometry *s, const Steps *step,                      \
                        const int64_t *offsets, const float *g, int64_t g_width, float *out,       \
                        const float *weight, int64_t wanted) {                                     \
        return lines(x, s, step, offsets, g, g_width, out, weight, wanted, count, vectors);        \
    }
TILE(lines_by_two, LINES, 2)
TILE(lines_by_one, LINES, 1)
TILE(few_by_two, FEW, 2)
TILE(few_by_one, FEW, 1)

/* 4 x 4 numbers at a time, of so few positions that what is written stays in the cache. */
static void transpose(const float *g, int64_t channels, int64_t positions, float *out,
                      int64_t width) {
    enum { NEAR = 32 };
    for (int64_t start = 0; start < positions; start += NEAR) {
        int64_t end = start + NEAR < positions ? start + NEAR : positions, o = 0;
        for (; o + 4 <= channels; o += 4) {
            const float *at = g + o * positions;
            int64_t p = start;
            for (; p + 4 <= end; p += 4) {
                four a = *(const four *)(at + p), b = *(const four *)(at + positions + p);
                four c = *(const four *)(at + 2 * positions + p);
                four d = *(const four *)(at + 3 * positions + p);
                four ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
                four ef = SHUFFLE(a, b, 2, 6, 3, 7), gh = SHUFFLE(c, d, 2, 6, 3, 7);
                float *to = out + p * width + o;
                *(four *)to = SHUFFLE(ab, cd, 0, 1, 4, 5);
                *(four *)(to + width) = SHUFFLE(ab, cd, 2, 3, 6, 7);
                *(four *)(to + 2 * width) = SHUFFLE(ef, gh, 0, 1, 4, 5);
                *(four *)(to + 3 * width) = SHUFFLE(ef, gh, 2, 3, 6, 7);
            }
            for (; p < end; p++)
                for (int k = 0; k < 4; k++) out[p * width + o + k] = at[k * positions + p];
        }
        for (; o < width; o++)
            for (int64_t p = start; p < end; p++)
                out[p * width + o] = o < channels ? g[o * positions + p] : 0;
    }
}

static void pad(const float *x, const Geometry *s, int64_t height, int64_t width, float *out) {
    memset(out, 0, sizeof(float) * s->channels * height * width);
    int64_t planes = s->inputs_last ? 1 : s->channels, pixel = s->inputs_last ? s->channels : 1;
    for (int64_t c = 0; c < planes; c++)
        for (int64_t y = 0; y < s->height; y++)
            memcpy(out + ((c * height + y + s->pad_height) * width + s->pad_width) * pixel,
                   x + (c * s->height + y) * s->width * pixel, sizeof(float) * s->width * pixel);
}

static double weight_gradient(const float *x, const Geometry *s, const Steps *step,
                              int64_t num_lines, const int64_t *offsets, const float *g,
                              int64_t g_width, float *out, const float *weight) {
    doubles squares = {0};
    for (int64_t o = 0; o < g_width; o += 2 * W) {
        int two = o + W < g_width;
        for (int64_t k = 0, many; k < num_lines; k += many ? LINES : FEW) {
            many = k + 2 * FEW < num_lines;
            squares += (many ? two ? lines_by_two : lines_by_one : two ? few_by_two : few_by_one)(
                x, s, step, offsets + k, g + o, g_width, out ? out + k * g_width + o : 0,
                weight, num_lines - k);
        }
    }
    double sum = 0;
    for (int w = 0; w < W; w++) sum += squares[w];
    return sum;
}

/* inputs [n, frames, groups, channels, height, width], grads [n, frames, groups, out_channels, out
 * positions], or with channels last; grads only where out_channels is a multiple of W;
 * kept [n, groups, l, out_channels up to a multiple of W] or null; sums of grads over positions
 * [n, groups, out_channels] or null.  With weights [n], kept is [n / chunk, ...] and takes the
 * weighted sums of so many samples, and squares are not asked for.  mass [n] or null takes more than
 * the squares would be if nothing cancelled: no patch is longer than its largest number allows. */
typedef struct {
    const float *inputs, *grads;
    float *kept, *sums, *squares, *mass;
    const Geometry *geometry;
    Guard *guard; /* of Gram sums */
    const float *weights;
    int64_t chunk;
} Convolution;

int64_t psac_convolution_bytes(const Geometry *s) {
    int64_t lines = s->channels * s->kernel_height * s->kernel_width;
    int64_t height = s->height + 2 * s->pad_height, width = s->width + 2 * s->pad_width;
    int64_t g = s->out_height * s->out_width * ((s->out_channels + W - 1) / W * W);
    int64_t numbers = s->frames * (g + s->channels * height * width);
    return sizeof(int64_t) * (lines + LINES) + sizeof(float) * numbers;
}

static void add_positions(const float *g, int64_t positions, int64_t g_width, int64_t channels,
                          float *out) {
    for (int64_t o = 0; o < channels; o += W) {
        vec sum = {0};
        for (int64_t p = 0; p < positions; p++) sum += *(const vec *)(g + p * g_width + o);
        memcpy(out + o, &sum, sizeof(float) * (channels - o < W ? channels - o : W));
    }
}

/* The largest size of a number; one that is none is larger than all. */
static double peak(const float *x, int64_t count) {
    uint32_t most = 0, bits;
    float found;
    for (int64_t k = 0; k < count; k++) {
        memcpy(&bits, x + k, sizeof bits);
        bits &= 0x7fffffff; /* without the sign; sizes are in the order of their bits */
        most = bits > most ? bits : most;
    }
    memcpy(&found, &most, sizeof found);
    return found;
}

static double energy(const float *x, int64_t count) {
    vec sum = {0};
    int64_t k = 0;
    for (; k + W <= count; k += W) sum += *(const vec *)(x + k) * *(const vec *)(x + k);
    double rest = 0;
    for (; k < count; k++) rest += x[k] * x[k];
    return rest + total(sum);
}

void psac_convolution(const void *given, void *memory, int64_t first, int64_t last) {
    const Convolution *its = given;
    const Geometry *s = its->geometry;
    int64_t positions = s->out_height * s->out_width, g_width = (s->out_channels + W - 1) / W * W;
    float *turned = memory; /* first, so that it begins with a line of the cache */
    int64_t *offsets = (int64_t *)(turned + s->frames * positions * g_width);
    int64_t height = s->height + 2 * s->pad_height, width = s->width + 2 * s->pad_width, l = 0;
    int64_t pixel = s->inputs_last ? s->channels : 1;
    int64_t plane = s->inputs_last ? 1 : height * width;
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t i = 0; i < s->kernel_height; i++)
            for (int64_t j = 0; j < s->kernel_width; j++)
                offsets[l++] =
                    c * plane + (i * s->dilation_height * width + j * s->dilation_width) * pixel;
    memset(offsets + l, 0, sizeof(int64_t) * LINES);
    float *padded = (float *)(offsets + l + LINES);
    int64_t size = s->groups * l * g_width; /* of a sample's gradient */
    if (its->weights) memset(its->kept + first / its->chunk * size, 0, sizeof(float) * size);
    for (int64_t n = first; n < last; n++) {
        const float *weight = its->weights ? its->weights + n : 0;
        float *out = its->kept ? its->kept + (weight ? n / its->chunk : n) * size : 0;
        double squares = 0, mass = 0;
        for (int64_t h = 0; h < s->groups; h++) {
            int64_t at = n * s->frames * s->groups + h, image = s->channels * s->height * s->width;
            const float *x = its->inputs + at * image;
            Steps step = {s->stride_width * pixel, s->stride_height * width * pixel,
                          s->groups * image};
            const float *g = its->grads + at * s->out_channels * positions;
            for (int64_t f = 0; f < s->frames && !s->grads_last; f++)
                transpose(g + f * s->groups * s->out_channels * positions, s->out_channels,
                          positions, turned + f * positions * g_width, g_width);
            if (!s->grads_last) g = turned;
            if (its->mass) {
                double most = 0, one;
                for (int64_t f = 0; f < s->frames; f++, most = one > most ? one : most)
                    one = peak(x + f * step.frame, image);
                mass += most * most * l * energy(g, s->frames * positions * g_width);
            }
            if (its->sums)
                add_positions(g, s->frames * positions, g_width, s->out_channels,
                              its->sums + (n * s->groups + h) * s->out_channels);
            if (s->pad_height || s->pad_width) {
                int64_t padded_image = s->channels * height * width;
                for (int64_t f = 0; f < s->frames; f++)
                    pad(x + f * step.frame, s, height, width, padded + f * padded_image);
                x = padded, step.frame = padded_image;
            }
            squares += weight_gradient(x, s, &step, l, offsets, g, g_width, out, weight);
            if (out) out += l * g_width;
        }
        if (!weight) its->squares[n] = squares;
        if (its->mass) its->mass[n] = mass;
    }
}

/* --- Convolutions of one input channel: C[d] = sum over positions p of X[p + d] G[p] ------------
 * for each kernel offset d.  Positions of a row lie along the lanes.  X is padded, and its columns
 * are sorted by their remainder modulo the stride, so that an offset is one distance in memory. */

typedef struct {
    int64_t row, columns, width; /* of outputs up to whole vectors; of X: of a remainder, of a row */
} Strip;

static Strip strip(const Geometry *s) {
    int64_t row = (s->out_width + W - 1) / W * W;
    int64_t columns = row + (s->kernel_width - 1) * s->dilation_width / s->stride_width + 1;
    return (Strip){row, columns, columns * s->stride_width};
}

int64_t psac_depthwise_bytes(const Geometry *s) {
    Strip t = strip(s);
    return sizeof(float) * ((s->height + 2 * s->pad_height) * t.width + s->out_height * t.row);
}

INLINE void add_offsets(const float *x, int64_t down, const float *g, const Strip *t, int64_t rows,
                        const int64_t *shifts, int count, float *out) {
    vec sums[4] = {{0}};
    for (int64_t y = 0; y < rows; y++, x += down, g += t->row)
        for (int64_t p = 0; p < t->row; p += W) {
            vec at = *(const vec *)(g + p);
            for (int k = 0; k < count; k++) sums[k] += at * *(const vec *)(x + p + shifts[k]);
        }
    for (int k = 0; k < count; k++) out[k] += total(sums[k]);
}

static void add_row_of_offsets(const float *x, int64_t down, const float *g, const Strip *t,
                               const Geometry *s, float *out) {
    int64_t shifts[4], j = 0, rows = s->out_height;
    while (j < s->kernel_width) {
        int count = s->kernel_width - j < 4 ? (int)(s->kernel_width - j) : 4;
        for (int k = 0; k < count; k++) {
            int64_t right = (j + k) * s->dilation_width;
            shifts[k] = right % s->stride_width * t->columns + right / s->stride_width;
        }
        switch (count) { /* so that each loop is unrolled */
        case 4: add_offsets(x, down, g, t, rows, shifts, 4, out + j); break;
        case 3: add_offsets(x, down, g, t, rows, shifts, 3, out + j); break;
        case 2: add_offsets(x, down, g, t, rows, shifts, 2, out + j); break;
        default: add_offsets(x, down, g, t, rows, shifts, 1, out + j);
        }
        j += count;
    }
}

/* `kept` takes the gradients, [n, h, o, kernel]. */
void psac_depthwise(const void *given, void *memory, int64_t first, int64_t last) {
    const Convolution *its = given;
    const Geometry *s = its->geometry;
    Strip t = strip(s);
    int64_t image = s->height * s->width, positions = s->out_height * s->out_width;
    int64_t offsets = s->kernel_height * s->kernel_width, size = s->groups * s->out_channels * offsets;
    float *x = memory, *g = x + (s->height + 2 * s->pad_height) * t.width;
    memset(memory, 0, psac_depthwise_bytes(s));
    for (int64_t n = first; n < last; n++) {
        float *kept = its->kept + n * size;
        memset(kept, 0, sizeof(float) * size);
        for (int64_t k = 0; k < s->frames * s->groups; k++) {
            const float *from = its->inputs + (n * s->frames * s->groups + k) * image;
            for (int64_t i = 0; i < s->height; i++) {
                float *to = x + (i + s->pad_height) * t.width;
                for (int64_t j = 0; j < s->width; j++) {
                    int64_t q = j + s->pad_width, column = q / s->stride_width;
                    if (column < t.columns) to[q % s->stride_width * t.columns + column] = from[j];
                }
                from += s->width;
            }
            for (int64_t o = 0; o < s->out_channels; o++) {
                int64_t channel = (n * s->frames * s->groups + k) * s->out_channels + o;
                for (int64_t i = 0; i < s->out_height; i++)
                    memcpy(g + i * t.row, its->grads + channel * positions + i * s->out_width,
                           sizeof(float) * s->out_width);
                float *out = kept + (k % s->groups * s->out_channels + o) * offsets;
                for (int64_t i = 0; i < s->kernel_height; i++)
                    add_row_of_offsets(x + i * s->dilation_height * t.width,
                                       s->stride_height * t.width, g, &t, s,
                                       out + i * s->kernel_width);
            }
        }
        its->squares[n] = energy(kept, size);
    }
}

/* --- Gram of pixels, for stride one: sum over p, q of <g_p, g_q> <patch_p, patch_q> -------------
 * where <patch_p, patch_q> is the sum over kernel offsets d of <x_{p+d}, x_{q+d}>.  Pixels and
 * output positions lie on one grid, so that an offset is one distance in memory; masks leave out
 * what lies beyond the image.  Channels stay outermost, in panels of SPAN places.  Of both Gram
 * matrices only blocks on and above the diagonal are formed, the second never stored. */

typedef int32_t mask __attribute__((vector_size(4 * W), aligned(4), may_alias));
enum { SPAN = 3 * W, BLOCK = W / 2 };
#define LANE(k, s) k

typedef struct {
    int64_t width, pixels, outputs; /* of the grid; places on it up to whole panels */
    int64_t offsets, reach;         /* of the kernel; the largest distance that one can be */
} Grid;

static int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

static Grid grid(const Geometry *s) {
    int64_t width = s->width > s->out_width ? s->width : s->out_width;
    int64_t rows = s->pad_height + s->kernel_height * s->dilation_height;
    int64_t columns = s->pad_width + s->kernel_width * s->dilation_width;
    return (Grid){width, whole(s->height * width, SPAN), whole(s->out_height * width, SPAN),
                  s->kernel_height * s->kernel_width, rows * width + columns};
}

int64_t psac_pixels_bytes(const Geometry *s) {
    Grid t = grid(s);
    int64_t numbers = s->channels * t.pixels + s->out_channels * t.outputs +
                      t.offsets * t.outputs + t.pixels * t.pixels + 2 * (t.reach + SPAN) +
                      t.pixels + t.outputs;
    return sizeof(int64_t) * t.offsets + sizeof(float) * numbers;
}

/* masks[d][p]: whether offset d of position p lies in the image; shifts[d]: how far it is. */
static void outline(const Geometry *s, const Grid *t, int64_t *shifts, int32_t *masks) {
    memset(masks, 0, sizeof(int32_t) * t->offsets * t->outputs);
    for (int64_t d = 0; d < t->offsets; d++, masks += t->outputs) {
        int64_t down = d / s->kernel_width * s->dilation_height - s->pad_height;
        int64_t right = d % s->kernel_width * s->dilation_width - s->pad_width;
        shifts[d] = down * t->width + right;
        for (int64_t y = 0; y < s->out_height; y++)
            for (int64_t x = 0; x < s->out_width; x++)
                masks[y * t->width + x] = -(y + down >= 0 && y + down < s->height &&
                                            x + right >= 0 && x + right < s->width);
    }
}

/* [channels, height, width] to [places / SPAN, channels, SPAN] */
static void pack(const float *x, int64_t channels, int64_t height, int64_t width, int64_t grid_width,
                 int64_t places, float *line, float *out) {
    memset(line, 0, sizeof(float) * places);
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t y = 0; y < height; y++, x += width)
            memcpy(line + y * grid_width, x, sizeof(float) * width);
        for (int64_t q = 0; q < places; q += SPAN)
            memcpy(out + q * channels + c * SPAN, line + q, sizeof(float) * SPAN);
    }
}

INLINE void products_of(const float *a, const float *b, int64_t channels, float *out, int64_t row,
                        int vectors) {
    vec sums[BLOCK][3];
    memset(sums, 0, sizeof sums);
    for (int64_t c = 0; c < channels; c++, a += SPAN, b += SPAN) {
        vec y[3];
        for (int v = 0; v < vectors; v++) y[v] = *(const vec *)(b + v * W);
        for (int i = 0; i < BLOCK; i++)
            for (int v = 0; v < vectors; v++) sums[i][v] += a[i] * y[v];
    }
    for (int i = 0; i < BLOCK; i++)
        for (int v = 0; v < vectors; v++) *(vec *)(out + i * row + v * W) = sums[i][v];
}

/* One function for each number of vectors, as above. */
#define PRODUCTS(name, vectors)                                                                    \
    static void name(const float *a, const float *b, int64_t channels, float *out, int64_t row) {  \
        products_of(a, b, channels, out, row, vectors);                                            \
    }
PRODUCTS(products_by_one, 1)
PRODUCTS(products_by_two, 2)
PRODUCTS(products_by_three, 3)

typedef struct {
    int64_t p, q, from, to; /* BLOCK rows from p; of the panel at q, these vectors */
} Block;

/* The next block on or above the diagonal, row by row in each panel. */
static int next(Block *k, int64_t places) {
    k->p += BLOCK;
    if (k->p >= k->q + SPAN || k->p >= places) k->p = 0, k->q += SPAN;
    k->from = k->p > k->q ? (k->p - k->q) / W : 0;
    k->to = k->q + SPAN <= places ? 3 : (places - k->q + W - 1) / W;
    return k->q < places;
}

static void form(const Block *k, const float *packed, int64_t channels, float *out, int64_t row) {
    const float *a = packed + k->p / SPAN * SPAN * channels + k->p % SPAN;
    const float *b = packed + k->q * channels + k->from * W;
    int64_t vectors = k->to - k->from;
    (vectors == 3 ? products_by_three : vectors == 2 ? products_by_two : products_by_one)(
        a, b, channels, out + k->from * W, row);
}

typedef struct {
    const float *pixels; /* Gram matrix of pixels, in rows of so many */
    int64_t row, offsets, outputs;
    const int64_t *shifts;
    const int32_t *masks;
} Shifted;

/* Adds <g_p, g_q> <patch_p, patch_q> over a row of a block, for q beyond p. */
INLINE vec beyond(const Shifted *s, const float *grads, int64_t p, int64_t q, int vectors) {
    vec sums[3], sum = {0};
    memset(sums, 0, sizeof sums);
    const int32_t *masks = s->masks;
    for (int64_t d = 0; d < s->offsets; d++, masks += s->outputs) {
        if (!masks[p]) continue;
        const float *at = s->pixels + (p + s->shifts[d]) * s->row + q + s->shifts[d];
        for (int v = 0; v < vectors; v++)
            sums[v] += (vec)(*(const mask *)(at + v * W) & *(const mask *)(masks + q + v * W));
    }
    const mask lanes = {LANES(LANE, 0)};
    for (int v = 0; v < vectors; v++) {
        vec z = sums[v] * *(const vec *)(grads + v * W);
        sum += (vec)((mask)z & (lanes > (int32_t)(p - q - v * W)));
    }
    return sum;
}

static vec rows_beyond(const Shifted *s, const Block *k, const float *grads) {
    vec sum = {0};
    int64_t q = k->q + k->from * W, vectors = k->to - k->from;
    grads += k->from * W;
    for (int64_t p = k->p; p < k->p + BLOCK && p < s->outputs; p++, grads += SPAN)
        sum += vectors == 3   ? beyond(s, grads, p, q, 3)
               : vectors == 2 ? beyond(s, grads, p, q, 2)
                              : beyond(s, grads, p, q, 1);
    return sum;
}

/* The same for q = p. */
static double diagonal(const Shifted *s, const Block *k, const float *grads) {
    double sum = 0;
    for (int64_t p = k->p > k->q ? k->p : k->q; p < k->p + BLOCK && p < k->q + SPAN; p++) {
        double patch = 0;
        for (int64_t d = 0; d < s->offsets; d++)
            if (s->masks[d * s->outputs + p]) patch += s->pixels[(p + s->shifts[d]) * (s->row + 1)];
        sum += patch * grads[(p - k->p) * SPAN + p - k->q];
    }
    return sum;
}

/* squares and mass as of psac_gram; nothing is kept; samples have one frame. */
void psac_pixels(const void *given, void *memory, int64_t first, int64_t last) {
    const Convolution *its = given;
    const Geometry *s = its->geometry;
    Grid t = grid(s);
    int64_t pixels = s->height * t.width, outputs = s->out_height * t.width;
    float *x = memory, *g = x + s->channels * t.pixels, *line = g + s->out_channels * t.outputs;
    int32_t *masks = (int32_t *)(line + t.pixels + t.outputs);
    float *gram = (float *)masks + t.offsets * t.outputs + t.reach + SPAN;
    int64_t *shifts = (int64_t *)(gram + t.pixels * t.pixels + t.reach + SPAN);
    Shifted shifted = {gram, t.pixels, t.offsets, t.outputs, shifts, masks};
    float products[BLOCK * SPAN];
    outline(s, &t, shifts, masks);
    for (int64_t n = first; n < last; n++) {
        double beside = 0, mass = 0;
        for (int64_t h = n * s->groups; h < (n + 1) * s->groups; h++) {
            pack(its->inputs + h * s->channels * s->height * s->width, s->channels, s->height, s->width,
                 t.width, t.pixels, line, x);
            pack(its->grads + h * s->out_channels * s->out_height * s->out_width, s->out_channels,
                 s->out_height, s->out_width, t.width, t.outputs, line, g);
            for (Block k = {-BLOCK, 0, 0, 0}; next(&k, pixels);)
                form(&k, x, s->channels, gram + k.p * t.pixels + k.q, t.pixels);
            for (Block k = {-BLOCK, 0, 0, 0}; next(&k, outputs);) {
                form(&k, g, s->out_channels, products, SPAN);
                beside += total(rows_beyond(&shifted, &k, products));
                if (k.p + BLOCK > k.q) mass += diagonal(&shifted, &k, products);
            }
        }
        its->squares[n] = 2 * beside + mass;
        its->mass[n] = mass;
        watch(its->guard, 2 * beside + mass, mass);
    }
}
