/* What follows a layer, as one pass over its outputs: see `models/norms.py` and `models/gru.py` for the equations.

   Rows lie one after another. Blocks of rows go through small buffers in float, in loops that a compiler vectorizes:
   one over few channels would not be. Threads have a contiguous part of the rows each, and a row of `to_scale`. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EPS 1e-4f
#define MOST 2048 /* numbers of a row */
#define BLOCK 512 /* numbers of a block, unless one row is longer */
#define INLINE __attribute__((always_inline)) static inline

typedef uint16_t bf16;

INLINE float from_bf16(bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

INLINE bf16 to_bf16(float x) /* to the nearest, ties to even */
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fc0 : (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE float sigmoid(float x) /* by exp(-x) = 2^n e^r, |r| <= log(2) / 2; NaN stays NaN */
{
    float y = x > 87.0f ? -87.0f : x < -87.0f ? 87.0f : -x, n = rintf(y * 1.44269504f);
    float r = (y - n * 0.693359375f) + n * 2.12194440e-4f, power;
    int32_t bits = ((int32_t)n + 127) << 23;
    memcpy(&power, &bits, 4);
    float e = 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    return 1.0f / (1.0f + e * power);
}

INLINE float hyperbolic(float x) /* tanh */
{
    return 2.0f * sigmoid(2.0f * x) - 1.0f;
}

INLINE void load(float *to, const void *from, long at, int count, int half)
{
    if (half)
        for (int i = 0; i < count; i++) to[i] = from_bf16(((const bf16 *)from)[at + i]);
    else
        memcpy(to, (const float *)from + at, sizeof(float) * count);
}

INLINE void store(void *to, long at, const float *from, int count, int half)
{
    if (half)
        for (int i = 0; i < count; i++) ((bf16 *)to)[at + i] = to_bf16(from[i]);
    else
        memcpy((float *)to + at, from, sizeof(float) * count);
}

/* Of m rows of `size` numbers: each row's product with another, and its share in the mean. */
INLINE void row_means(float *mean, const float *a, const float *b, int m, int size)
{
    for (int r = 0; r < m; r++) {
        float sum = 0;
        for (int c = 0; c < size; c++) sum += a[r * size + c] * b[r * size + c];
        mean[r] = sum / size;
    }
}

INLINE void scale_rows(float *x, const float *factor, int m, int size)
{
    for (int r = 0; r < m; r++)
        for (int c = 0; c < size; c++) x[r * size + c] *= factor[r];
}

INLINE void scale_columns(float *to, const float *x, const float *scale, int m, int size)
{
    for (int r = 0; r < m; r++)
        for (int c = 0; c < size; c++) to[r * size + c] = x[r * size + c] * scale[c];
}

/* x / sqrt(mean x^2 + eps) in place; the factors stay. */
INLINE void normalize(float *x, float *factor, int m, int size)
{
    row_means(factor, x, x, m, size);
    for (int r = 0; r < m; r++) factor[r] = 1.0f / sqrtf(factor[r] + EPS);
    scale_rows(x, factor, m, size);
}

/* The gradient with respect to what `normalize` made into `normal`, in place of that with respect to normal scale. */
INLINE void back_to_inputs(float *gradient, const float *normal, const float *scale, const float *factor, int m,
                           int size)
{
    float shared[BLOCK];
    scale_columns(gradient, gradient, scale, m, size);
    row_means(shared, gradient, normal, m, size);
    for (int r = 0; r < m; r++)
        for (int c = 0; c < size; c++)
            gradient[r * size + c] = factor[r] * (gradient[r * size + c] - normal[r * size + c] * shared[r]);
}

INLINE void norm_rows(const void *x, const float *scale, void *y, long first, long last, int size, int silu, int half)
{
    float v[MOST], factor[BLOCK];
    const int n = size < BLOCK ? BLOCK / size : 1;
    for (long at = first; at < last; at += n) {
        const int m = last - at < n ? last - at : n, count = m * size;
        load(v, x, at * size, count, half);
        normalize(v, factor, m, size);
        scale_columns(v, v, scale, m, size);
        if (silu)
            for (int i = 0; i < count; i++) v[i] *= sigmoid(v[i]);
        store(y, at * size, v, count, half);
    }
}

INLINE void norm_rows_back(const void *gradient, const void *x, const float *scale, void *to_x, float *to_scale,
                           long first, long last, int size, int silu, int half)
{
    float v[MOST], g[MOST], w[MOST], sum[MOST], factor[BLOCK];
    const int n = size < BLOCK ? BLOCK / size : 1;
    memset(sum, 0, sizeof(float) * n * size);
    for (long at = first; at < last; at += n) {
        const int m = last - at < n ? last - at : n, count = m * size;
        load(v, x, at * size, count, half);
        load(g, gradient, at * size, count, half);
        normalize(v, factor, m, size);
        if (silu) {
            scale_columns(w, v, scale, m, size);
            for (int i = 0; i < count; i++) {
                float s = sigmoid(w[i]);
                g[i] *= s * (1.0f + w[i] * (1.0f - s));
            }
        }
        for (int i = 0; i < count; i++) sum[i] += g[i] * v[i];
        back_to_inputs(g, v, scale, factor, m, size);
        store(to_x, at * size, g, count, half);
    }
    for (int c = 0; c < size; c++) to_scale[c] = 0;
    for (int r = 0; r < n; r++)
        for (int c = 0; c < size; c++) to_scale[c] += sum[r * size + c];
}

/* CALL with a constant size where it is a usual small one: a loop over so few is unrolled. */
#define SIZES(size)               \
    switch (size) {               \
    case 6: CALL(6); break;       \
    case 8: CALL(8); break;       \
    case 12: CALL(12); break;     \
    case 16: CALL(16); break;     \
    case 24: CALL(24); break;     \
    case 32: CALL(32); break;     \
    default: CALL(size);          \
    }
#define PART(t) const long first = rows * t / threads, last = rows * (t + 1) / threads

/* x and y: [rows, size], of bf16 if `half`, else float; scale [size]. */
void rms_norm(const void *x, const float *scale, void *y, long rows, int size, int silu, int half, int threads)
{
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        PART(t);
#define CALL(size) norm_rows(x, scale, y, first, last, size, silu, half)
        SIZES(size)
#undef CALL
    }
}

/* to_scale [threads, size]: the sum over each thread's rows. */
void rms_norm_back(const void *gradient, const void *x, const float *scale, void *to_x, float *to_scale, long rows,
                   int size, int silu, int half, int threads)
{
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        PART(t);
        float *own = to_scale + (long)t * size;
#define CALL(size) norm_rows_back(gradient, x, scale, to_x, own, first, last, size, silu, half)
        SIZES(size)
#undef CALL
    }
}

/* raw [rows, 3 size], scale [3 size], h and y [rows, size]. */
void norm_gates(const float *restrict raw, const float *restrict scale, const float *restrict h, float *restrict y,
                long rows, int size)
{
    float v[MOST], factor;
    const float *reset = v, *candidate = v + size, *update = v + 2 * size;
    for (long row = 0; row < rows; row++, raw += 3 * size, h += size, y += size) {
        memcpy(v, raw, sizeof(float) * 3 * size);
        normalize(v, &factor, 1, 3 * size);
        scale_columns(v, v, scale, 1, 3 * size);
        for (int c = 0; c < size; c++) {
            float new = hyperbolic(sigmoid(reset[c]) * candidate[c]);
            y[c] = h[c] + sigmoid(update[c] - 1.0f) * (new - h[c]);
        }
    }
}

void norm_gates_back(const float *restrict gradient, const float *restrict raw, const float *restrict scale,
                     const float *restrict h, float *restrict to_raw, float *restrict to_h, float *restrict to_scale,
                     long rows, int size)
{
    float normal[MOST], v[MOST], factor;
    const float *reset = v, *candidate = v + size, *update = v + 2 * size;
    memset(to_scale, 0, sizeof(float) * 3 * size);
    for (long row = 0; row < rows; row++) {
        memcpy(normal, raw, sizeof(float) * 3 * size);
        normalize(normal, &factor, 1, 3 * size);
        scale_columns(v, normal, scale, 1, 3 * size);
        for (int c = 0; c < size; c++) {
            float r = sigmoid(reset[c]), k = sigmoid(update[c] - 1.0f), new = hyperbolic(r * candidate[c]);
            float inner = gradient[c] * k * (1.0f - new * new);
            to_raw[c] = inner * candidate[c] * r * (1.0f - r);
            to_raw[size + c] = inner * r;
            to_raw[2 * size + c] = gradient[c] * (new - h[c]) * k * (1.0f - k);
            to_h[c] = gradient[c] * (1.0f - k);
        }
        for (int c = 0; c < 3 * size; c++) to_scale[c] += to_raw[c] * normal[c];
        back_to_inputs(to_raw, normal, scale, &factor, 1, 3 * size);
        gradient += size, raw += 3 * size, h += size, to_raw += 3 * size, to_h += size;
    }
}

/* Filter response normalization, and a learned threshold: max(gamma f x + beta, tau) of x [pictures, pixels, channels],
   with f = 1 / sqrt(mean of x^2 over a picture's pixels + 1e-6). gamma, beta, tau [channels]. */
INLINE void power_of(float *factor, const void *x, long picture, long pixels, int channels, int half)
{
    float v[MOST];
    for (int c = 0; c < channels; c++) factor[c] = 0;
    for (long p = 0; p < pixels; p++) {
        load(v, x, (picture * pixels + p) * channels, channels, half);
        for (int c = 0; c < channels; c++) factor[c] += v[c] * v[c];
    }
    for (int c = 0; c < channels; c++) factor[c] = 1.0f / sqrtf(factor[c] / pixels + 1e-6f);
}

INLINE void responses(const void *x, const float *gamma, const float *beta, const float *tau, void *y, long picture,
                      long pixels, int channels, int half)
{
    float v[MOST], factor[MOST];
    power_of(factor, x, picture, pixels, channels, half);
    for (int c = 0; c < channels; c++) factor[c] *= gamma[c];
    for (long p = 0; p < pixels; p++) {
        const long at = (picture * pixels + p) * channels;
        load(v, x, at, channels, half);
        for (int c = 0; c < channels; c++) {
            float z = v[c] * factor[c] + beta[c];
            v[c] = z <= tau[c] ? tau[c] : z;
        }
        store(y, at, v, channels, half);
    }
}

INLINE float above_threshold(float gradient, float z, float tau)
{
    return z <= tau ? 0.0f : gradient;
}

INLINE void responses_back(const void *gradient, const void *x, const float *gamma, const float *beta, const float *tau,
                           void *to_x, float *to_parameters, long picture, long pixels, int channels, int half)
{
    float *to_gamma = to_parameters, *to_beta = to_gamma + channels, *to_tau = to_beta + channels;
    float v[MOST], g[MOST], factor[MOST], sum[MOST];
    power_of(factor, x, picture, pixels, channels, half);
    for (int c = 0; c < channels; c++) sum[c] = to_beta[c] = to_tau[c] = 0;
    for (long p = 0; p < pixels; p++) {
        const long at = (picture * pixels + p) * channels;
        load(v, x, at, channels, half);
        load(g, gradient, at, channels, half);
        for (int c = 0; c < channels; c++) {
            float above = above_threshold(g[c], v[c] * factor[c] * gamma[c] + beta[c], tau[c]);
            sum[c] += above * v[c];
            to_beta[c] += above;
            to_tau[c] += g[c] - above;
        }
    }
    for (int c = 0; c < channels; c++) {
        to_gamma[c] = sum[c] * factor[c];
        sum[c] *= factor[c] * factor[c] / pixels;
    }
    for (long p = 0; p < pixels; p++) {
        const long at = (picture * pixels + p) * channels;
        load(v, x, at, channels, half);
        load(g, gradient, at, channels, half);
        for (int c = 0; c < channels; c++) {
            float above = above_threshold(g[c], v[c] * factor[c] * gamma[c] + beta[c], tau[c]);
            v[c] = gamma[c] * factor[c] * (above - v[c] * sum[c]);
        }
        store(to_x, at, v, channels, half);
    }
}

void response_norm(const void *x, const float *gamma, const float *beta, const float *tau, void *y, long pictures,
                   long pixels, int channels, int half, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long picture = 0; picture < pictures; picture++) {
#define CALL(channels) responses(x, gamma, beta, tau, y, picture, pixels, channels, half)
        SIZES(channels)
#undef CALL
    }
}

/* to_parameters [pictures, 3, channels]: of gamma, beta and tau, from each picture. */
void response_norm_back(const void *gradient, const void *x, const float *gamma, const float *beta, const float *tau,
                        void *to_x, float *to_parameters, long pictures, long pixels, int channels, int half,
                        int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (long picture = 0; picture < pictures; picture++) {
        float *own = to_parameters + picture * 3 * channels;
#define CALL(channels) \
    responses_back(gradient, x, gamma, beta, tau, to_x, own, picture, pixels, channels, half)
        SIZES(channels)
#undef CALL
    }
}
