/* --- Max pooling of planes with stride one: the largest number of each window, and its place ------
 * As in torch, the first of equal numbers counts, and NaN is larger than any.  One offset of the
 * window after the other, over whole planes: outputs lie in rows as wide as those of the inputs,
 * and what stands behind the last output of a row is left out at the end. */

typedef struct {
    const float *inputs;
    float *outputs;
    int64_t *places; /* in a plane of inputs */
    int64_t height, width, out_height, out_width;
    int64_t kernel_height, kernel_width, dilation_height, dilation_width;
} Pooling;

/* memory: rows of outputs and their places */
void psac_max_pool(const void *given, void *memory, int64_t first, int64_t last) {
    const Pooling *s = given;
    int64_t rows = s->out_height * s->width, count = rows - s->width + s->out_width;
    float *best = memory;
    int32_t *places = (int32_t *)(best + rows);
    for (int64_t n = first; n < last; n++) {
        const float *x = s->inputs + n * s->height * s->width;
        for (int32_t k = 0; k < count; k++) best[k] = x[k], places[k] = k;
        for (int64_t j = 1; j < s->kernel_height * s->kernel_width; j++) {
            int32_t offset = (int32_t)(j / s->kernel_width * s->dilation_height * s->width +
                                       j % s->kernel_width * s->dilation_width);
            for (int32_t k = 0; k < count; k++) {
                float value = x[offset + k];
                int take = (value > best[k]) | (value != value);
                best[k] = take ? value : best[k];
                places[k] = take ? offset + k : places[k];
            }
        }
        for (int64_t y = 0; y < s->out_height; y++) {
            int64_t row = (n * s->out_height + y) * s->out_width;
            memcpy(s->outputs + row, best + y * s->width, sizeof(float) * s->out_width);
            for (int64_t k = 0; k < s->out_width; k++) s->places[row + k] = places[y * s->width + k];
        }
    }
}

