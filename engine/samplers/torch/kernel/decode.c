/* Passes over a small base, each row under its own adapter: all layers in one call.

   A small base costs little arithmetic, and a pass made of a library's operations costs mostly their beginning. Here a
   pass is one call. Rows are tokens; a row's result depends on its own sequence alone, to the last bit: every sum is
   taken in one order, whatever other rows there are, and a row reads as much memory as its position says.

   Nothing here allocates memory, starts threads, or keeps state between calls. `library.py` has the same structures and
   says what their fields are; sizes are in floats. C11 with the vector extensions of GCC and Clang. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The widest vectors of the processor that this is compiled for, and how many rows of sums its registers hold beside
   two columns of them. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 12 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#elif defined(__aarch64__)
enum { LANES = 4, ROWS = 12 };
#else
enum { LANES = 4, ROWS = 6 };
#endif

enum {
    PANEL = 2 * LANES, /* columns of a matrix that lie together */
    BLOCK = 16,        /* tokens of memory that lie together: a multiple of LANES everywhere */
    CHUNK = 96,        /* rows that go through all layers together: their values stay in the processor's cache */
    MODULES = 3,       /* most modules of a linear layer that is computed as one: queries, keys and values */
    LINEARS = 4,
    DEPTH = 192,       /* most inputs whose products are summed up in registers */
    WIDEST = 4,        /* most panels that one row is multiplied with at once */
};

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef float loose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline vec load(const float *from) { return *(const loose *)from; }
static inline void store(float *to, vec value) { *(loose *)to = value; }
static inline vec all(float value) { return value - (vec){0}; }
static inline vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
static inline long rounded(long size, long to) { return (size + to - 1) / to * to; }

/* Lanes are added in pairs, from the left. */
static inline float sum_of(vec value) {
    float lanes[LANES];
    store(lanes, value);
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

static inline float largest_of(vec value) {
    float lanes[LANES], most;
    store(lanes, value);
    most = lanes[0];
    for (int lane = 1; lane < LANES; lane++) most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

/* e^x to 2 units in the last place: 2^n times a polynomial in what is left, below ln 2 / 2 (as in Cephes' expf). What
   is too small for float32 becomes 0, what is too large about 2e38: sums stay finite. NaN stays NaN. */
static inline vec exponential(vec x) {
    const vec low = all(-87.33654f), high = all(88.0f), magic = all(12582912.0f); /* 1.5 * 2^23 rounds to integers */
    ivec nothing = x < low;
    x = choose(nothing, low, x);
    x = choose(x > high, high, x);
    vec turns = (x * 1.44269504088896341f + magic) - magic;
    vec rest = x - turns * 0.693359375f;
    rest = rest - turns * -2.12194440e-4f;
    vec found = all(1.9875691500e-4f);
    found = found * rest + 1.3981999507e-3f;
    found = found * rest + 8.3334519073e-3f;
    found = found * rest + 4.1665795894e-2f;
    found = found * rest + 1.6666665459e-1f;
    found = found * rest + 5.0000001201e-1f;
    found = found * (rest * rest) + rest + 1.0f;
    ivec exponent = (__builtin_convertvector(turns, ivec) + 127) << 23;
    return choose(nothing, (vec){0}, found * (vec)exponent);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Matrices (in, out) lie in panels of PANEL columns, (panels, in, PANEL), filled up with zeros. */
long packed_size(long inputs, long outputs) { return rounded(outputs, PANEL) * inputs; }

/* From W (out, in), times `factor`. */
void pack(const float *weight, long inputs, long outputs, float factor, float *packed) {
    for (long first = 0; first < outputs; first += PANEL)
        for (long input = 0; input < inputs; input++)
            for (long column = first; column < first + PANEL; column++)
                *packed++ = column < outputs ? weight[column * inputs + input] * factor : 0.0f;
}

/* How the sums are stored. */
typedef enum { SET, ADD } Way;

/* M rows times W panels at once, which are `dw` apart. Each sum is taken over the inputs in their order. */
#define PRODUCT(M, W)                                                                                                \
    static void product_##M##_##W(const float *x, long dx, const float *w, long dw, long inputs, float *y, long dy,  \
                                  Way way) {                                                                         \
        vec sums[M][2 * W];                                                                                          \
        for (int row = 0; row < M; row++)                                                                            \
            for (int column = 0; column < 2 * W; column++) sums[row][column] = (vec){0};                             \
        for (long input = 0; input < inputs; input++) {                                                              \
            vec weights[2 * W];                                                                                      \
            _Pragma("GCC unroll 8") for (int panel = 0; panel < W; panel++) {                                        \
                const float *own = w + panel * dw + input * PANEL;                                                   \
                weights[2 * panel] = load(own);                                                                      \
                weights[2 * panel + 1] = load(own + LANES);                                                          \
            }                                                                                                        \
            _Pragma("GCC unroll 12") for (int row = 0; row < M; row++) {                                             \
                float value = x[row * dx + input];                                                                   \
                _Pragma("GCC unroll 8") for (int column = 0; column < 2 * W; column++)                               \
                    sums[row][column] += weights[column] * value;                                                    \
            }                                                                                                        \
        }                                                                                                            \
        _Pragma("GCC unroll 12") for (int row = 0; row < M; row++)                                                   \
            _Pragma("GCC unroll 8") for (int column = 0; column < 2 * W; column++) {                                 \
                float *at = y + row * dy + column * LANES;                                                           \
                store(at, way == ADD ? load(at) + sums[row][column] : sums[row][column]);                            \
            }                                                                                                        \
    }

/* Few rows take several panels at once, so that enough sums are under way to hide how long each addition takes. */
PRODUCT(1, 1) PRODUCT(2, 1) PRODUCT(3, 1) PRODUCT(4, 1) PRODUCT(5, 1) PRODUCT(6, 1)
PRODUCT(1, 4) PRODUCT(2, 2) PRODUCT(3, 2)
#if defined(__AVX512F__) || defined(__aarch64__)
PRODUCT(7, 1) PRODUCT(8, 1) PRODUCT(9, 1) PRODUCT(10, 1) PRODUCT(11, 1) PRODUCT(12, 1)
#endif

typedef void (*Product)(const float *, long, const float *, long, long, float *, long, Way);

static const Product narrow[ROWS + 1] = {
    0, product_1_1, product_2_1, product_3_1, product_4_1, product_5_1, product_6_1,
#if defined(__AVX512F__) || defined(__aarch64__)
    product_7_1, product_8_1, product_9_1, product_10_1, product_11_1, product_12_1,
#endif
};
static const Product wide[4] = {0, product_1_4, product_2_2, product_3_2};
static const int width[4] = {0, WIDEST, 2, 2};

/* y (rows, outputs) = or += x (rows, inputs) times a matrix; columns up to a multiple of PANEL are written. Sums are
   cut by the number of inputs alone. */
static void multiply(const float *x, long dx, long rows, const float *matrix, long inputs, long outputs, float *y,
                     long dy, Way way) {
    long panels = rounded(outputs, PANEL) / PANEL;
    long parts = (rows + ROWS - 1) / ROWS, cuts = (inputs + DEPTH - 1) / DEPTH;
    for (long panel = 0, taken; rows && panel < panels; panel += taken) {
        taken = rows <= 3 && panels - panel >= width[rows] ? width[rows] : 1;
        for (long cut = 0; cut < cuts; cut++) {
            long begin = inputs * cut / cuts, depth = inputs * (cut + 1) / cuts - begin, dw = inputs * PANEL;
            const float *w = matrix + panel * dw + begin * PANEL;
            for (long part = 0; part < parts; part++) {
                long first = rows * part / parts, count = rows * (part + 1) / parts - first;
                Product product = taken > 1 ? wide[count] : narrow[count];
                product(x + first * dx + begin, dx, w, dw, depth, y + first * dy + panel * PANEL, dy, cut ? ADD : way);
            }
        }
    }
}

/* ---- The base and its adapters ----------------------------------------------------------------------------------- */

typedef struct {
    long inputs, outputs;
    const float *weight; /* packed */
    const float *bias;   /* (outputs) or 0 */
} Linear;

typedef struct {
    const float *attention_norm, *head_norm, *mlp_norm; /* (hidden), (queries + keys, size) or 0, (hidden) */
    Linear linears[LINEARS];                            /* qkv, o, gate and up, down */
} Layer;

typedef struct {
    long layers, hidden, inner, queries, keys, size, vocabulary;
    long length, sequences; /* tokens of a sequence, a multiple of BLOCK; how many sequences there are */
    float eps, scale;
    const float *embedding, *norm; /* (vocabulary, hidden), (hidden) */
    const float *head;             /* packed */
    const float *cosine, *sine; /* (length, size / 2) */
    const Layer *each;
    float *memory; /* (layers, sequences, keys, length / BLOCK, memory_size) */
    float *room;   /* room_size */
} Base;

typedef struct {
    long rank;                 /* of all modules together */
    const float *down;         /* packed (inputs, rank): the modules' A side by side */
    long ranks[MODULES];       /* of each module; 0 where it is not adapted */
    long columns[MODULES];     /* where its outputs begin */
    long outputs[MODULES];     /* how many there are */
    const float *ups[MODULES]; /* packed (ranks, outputs), times alpha / rank */
} Addition;

/* Of keys and values of BLOCK tokens of one head. Keys lie (size, BLOCK), so that one vector holds the same number of
   several tokens; values (BLOCK, size filled up to a multiple of BLOCK). */
long memory_size(long size) { return size * BLOCK + BLOCK * rounded(size, BLOCK); }

long block_size(void) { return BLOCK; }

/* From one row to the next, with room for the last panel of the last module. */
static long row_size(long columns) { return rounded(columns, PANEL) + PANEL; }

static long most(long one, long other) { return one > other ? one : other; }

static long qkv_size(const Base *base) { return row_size((base->queries + 2 * base->keys) * base->size); }

static long inner_size(const Base *base) {
    return most(row_size(base->inner), most(row_size(base->queries * base->size), row_size(base->hidden)));
}

/* What a pass needs for its values, for adapters of up to `rank` in all modules of a layer together. */
long room_size(const Base *base, long rank) {
    long row = row_size(base->hidden) + qkv_size(base) + inner_size(base) + row_size(2 * base->inner) + row_size(rank);
    return CHUNK * row + base->length + rounded(base->size, BLOCK);
}

/* y = x Wt + b, and what each row's adapter adds. `additions` has a pointer to a row's adapter, (layers, LINEARS), or
   0; neighbours with the same are multiplied together. */
static void apply(const Linear *linear, long number, const Addition *const *additions, const float *x, long dx,
                  long rows, float *y, long dy, Way way, float *between) {
    multiply(x, dx, rows, linear->weight, linear->inputs, linear->outputs, y, dy, way);
    if (linear->bias)
        for (long row = 0; row < rows; row++)
            for (long column = 0; column < linear->outputs; column++) y[row * dy + column] += linear->bias[column];
    for (long first = 0, next; first < rows; first = next) {
        for (next = first + 1; next < rows && additions[next] == additions[first]; next++) {}
        if (!additions[first]) continue;
        const Addition *own = additions[first] + number;
        if (!own->rank) continue;
        long db = row_size(own->rank), done = 0;
        multiply(x + first * dx, dx, next - first, own->down, linear->inputs, own->rank, between, db, SET);
        for (int module = 0; module < MODULES; module++) {
            if (own->ranks[module])
                multiply(between + done, db, next - first, own->ups[module], own->ranks[module],
                         own->outputs[module], y + first * dy + own->columns[module], dy, ADD);
            done += own->ranks[module];
        }
    }
}

/* ---- The pieces of a layer --------------------------------------------------------------------------------------- */

/* x / rms(x) times weight (Zhang and Sennrich, arXiv 1910.07467, eq. 4). */
static void normalise(const float *x, const float *weight, long size, float eps, float *y) {
    vec squares = {0};
    long at = 0;
    float sum;
    for (; at + LANES <= size; at += LANES) squares += load(x + at) * load(x + at);
    sum = sum_of(squares);
    for (; at < size; at++) sum += x[at] * x[at];
    float factor = 1.0f / sqrtf(sum / (float)size + eps);
    for (at = 0; at < size; at++) y[at] = x[at] * factor * weight[at];
}

/* Turn the halves of a head against each other (Su et al., arXiv 2104.09864; halves as Hugging Face has them). */
static void turn(float *head, const float *cosine, const float *sine, long half, float scale) {
    for (long at = 0; at < half; at++) {
        float first = head[at], second = head[at + half];
        head[at] = (first * cosine[at] - second * sine[at]) * scale;
        head[at + half] = (second * cosine[at] + first * sine[at]) * scale;
    }
}

/* silu(gate) * up for (2 * size), gates first (Shazeer, arXiv 2002.05202). */
static void open_gates(const float *gate_up, long size, float *y) {
    long at = 0;
    for (; at + LANES <= size; at += LANES) {
        vec gate = load(gate_up + at);
        store(y + at, gate / (1.0f + exponential(-gate)) * load(gate_up + size + at));
    }
    if (at < size) { /* the last vector, filled up */
        float gates[LANES] = {0}, opened[LANES];
        memcpy(gates, gate_up + at, (size_t)(size - at) * sizeof *gates);
        store(opened, load(gates) / (1.0f + exponential(-load(gates))));
        for (long lane = 0; at < size; at++, lane++) y[at] = opened[lane] * gate_up[size + at];
    }
}

/* Put a token's key and value into the memory of a head, at its position. */
static void remember(float *memory, long position, const float *key, const float *value, long size) {
    float *block = memory + position / BLOCK * memory_size(size);
    long place = position % BLOCK, filled = rounded(size, BLOCK);
    for (long at = 0; at < size; at++) block[at * BLOCK + place] = key[at];
    block += size * BLOCK + place * filled;
    memcpy(block, value, (size_t)size * sizeof *value);
    memset(block + size, 0, (size_t)(filled - size) * sizeof *block);
}

/* The products of BLOCK keys with one query; four sums at once, which are added at the end. */
static void score(const float *keys, const float *query, long size, float *scores) {
    for (int lane = 0; lane < BLOCK; lane += LANES) {
        vec sums[4] = {{0}};
        long at = 0;
        for (; at + 4 <= size; at += 4)
            for (int part = 0; part < 4; part++)
                sums[part] += load(keys + (at + part) * BLOCK + lane) * query[at + part];
        for (; at < size; at++) sums[0] += load(keys + at * BLOCK + lane) * query[at];
        store(scores + lane, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
}

/* One query over the `count` tokens in the memory of a head: softmax of the products with the keys, times the values.
   `scores` has room for `count`, rounded up to BLOCK; `result` (size) is written up to a multiple of BLOCK. */
static void attend(const float *memory, long count, const float *query, long size, float *scores, float *result) {
    long filled = rounded(size, BLOCK), step = memory_size(size), whole = rounded(count, BLOCK);
    for (long first = 0; first < whole; first += BLOCK)
        score(memory + first / BLOCK * step, query, size, scores + first);
    for (long at = count; at < whole; at++) scores[at] = -INFINITY;
    vec highest = load(scores), totals = {0};
    for (long at = LANES; at < whole; at += LANES)
        highest = choose(load(scores + at) > highest, load(scores + at), highest);
    float largest = largest_of(highest);
    for (long at = 0; at < whole; at += LANES) {
        vec weights = exponential(load(scores + at) - largest);
        store(scores + at, weights);
        totals += weights;
    }
    float share = 1.0f / sum_of(totals);
    for (long column = 0; column < filled; column += LANES) {
        vec sums[4] = {{0}};
        for (long first = 0; first < count; first += BLOCK) {
            const float *values = memory + first / BLOCK * step + size * BLOCK + column;
            long here = count - first < BLOCK ? count - first : BLOCK, at = 0;
            for (; at + 4 <= here; at += 4)
                for (int part = 0; part < 4; part++)
                    sums[part] += load(values + (at + part) * filled) * scores[first + at + part];
            for (; at < here; at++) sums[0] += load(values + at * filled) * scores[first + at];
        }
        store(result + column, ((sums[0] + sums[1]) + (sums[2] + sums[3])) * share);
    }
}

/* ---- A pass ------------------------------------------------------------------------------------------------------ */

typedef struct {
    long count;
    const int32_t *tokens, *positions, *sequences; /* (count) each */
    const int8_t *wanted;                          /* (count): of which rows there are logits */
    const Addition *const *additions;              /* (count) */
} Rows;

/* Write keys and values of a layer's rows to memory, then attend over it. Rows of one sequence are in order, and see
   themselves and what is before them. */
static void attention(const Base *base, long layer, const Rows *rows, float *qkv, float *attended, long da,
                      float *scores, float *found) {
    const Layer *own = base->each + layer;
    long size = base->size, half = size / 2, fold = base->queries / base->keys, dq = qkv_size(base);
    long head_size = base->length / BLOCK * memory_size(size);
    float *memory = base->memory + layer * base->sequences * base->keys * head_size;
    for (long row = 0; row < rows->count; row++) {
        float *heads = qkv + row * dq;
        long position = rows->positions[row];
        const float *cosine = base->cosine + position * half, *sine = base->sine + position * half;
        for (long head = 0; head < base->queries + base->keys; head++) {
            float *one = heads + head * size;
            if (own->head_norm) normalise(one, own->head_norm + head * size, size, base->eps, one);
            turn(one, cosine, sine, half, head < base->queries ? base->scale : 1.0f);
        }
        for (long key = 0; key < base->keys; key++)
            remember(memory + (rows->sequences[row] * base->keys + key) * head_size, position,
                     heads + (base->queries + key) * size, heads + (base->queries + base->keys + key) * size, size);
    }
    for (long row = 0; row < rows->count; row++)
        for (long head = 0; head < base->queries; head++) {
            const float *near = memory + (rows->sequences[row] * base->keys + head / fold) * head_size;
            attend(near, rows->positions[row] + 1, qkv + row * dq + head * size, size, scores, found);
            memcpy(attended + row * da + head * size, found, (size_t)size * sizeof *found);
        }
}

/* CHUNK rows at most, through all layers; returns how many rows of logits it has written. */
static long pass(const Base *base, long rank, const Rows *rows, float *logits) {
    long count = rows->count, dx = row_size(base->hidden), dq = qkv_size(base), di = inner_size(base);
    long dg = row_size(2 * base->inner);
    float *x = base->room, *qkv = x + CHUNK * dx, *inner = qkv + CHUNK * dq, *gate_up = inner + CHUNK * di;
    float *between = gate_up + CHUNK * dg;
    float *scores = between + CHUNK * row_size(rank);
    float *found = scores + base->length;
    const Addition *additions[CHUNK];
    memcpy(additions, rows->additions, (size_t)count * sizeof *additions);
    for (long row = 0; row < count; row++)
        memcpy(x + row * dx, base->embedding + rows->tokens[row] * base->hidden, (size_t)base->hidden * sizeof *x);
    for (long layer = 0; layer < base->layers; layer++) {
        const Layer *own = base->each + layer;
        for (long row = 0; row < count; row++)
            normalise(x + row * dx, own->attention_norm, base->hidden, base->eps, inner + row * di);
        apply(own->linears, LINEARS * layer, additions, inner, di, count, qkv, dq, SET, between);
        attention(base, layer, rows, qkv, inner, di, scores, found);
        if (layer == base->layers - 1) { /* of the other rows only keys and values were needed */
            long kept = 0;
            for (long row = 0; row < count; row++) {
                if (!rows->wanted[row]) continue;
                memmove(x + kept * dx, x + row * dx, (size_t)base->hidden * sizeof *x);
                memmove(inner + kept * di, inner + row * di, (size_t)(base->queries * base->size) * sizeof *x);
                additions[kept++] = rows->additions[row];
            }
            count = kept;
            if (!count) return 0;
        }
        apply(own->linears + 1, LINEARS * layer + 1, additions, inner, di, count, x, dx, ADD, between);
        for (long row = 0; row < count; row++)
            normalise(x + row * dx, own->mlp_norm, base->hidden, base->eps, inner + row * di);
        apply(own->linears + 2, LINEARS * layer + 2, additions, inner, di, count, gate_up, dg, SET, between);
        for (long row = 0; row < count; row++) open_gates(gate_up + row * dg, base->inner, inner + row * di);
        apply(own->linears + 3, LINEARS * layer + 3, additions, inner, di, count, x, dx, ADD, between);
    }
    for (long row = 0; row < count; row++)
        normalise(x + row * dx, base->norm, base->hidden, base->eps, inner + row * di);
    multiply(inner, di, count, base->head, base->hidden, base->vocabulary, logits, rounded(base->vocabulary, PANEL),
             SET);
    return count;
}

/* From one row of logits to the next. */
long logits_size(long vocabulary) { return rounded(vocabulary, PANEL); }

/* Any number of rows; `logits` (rows wanted, logits_size). */
void decode(const Base *base, long rank, const Rows *rows, float *logits) {
    for (long first = 0; first < rows->count; first += CHUNK) {
        long count = rows->count - first < CHUNK ? rows->count - first : CHUNK;
        Rows part = {count, rows->tokens + first, rows->positions + first, rows->sequences + first,
                     rows->wanted + first, rows->additions + first};
        logits += pass(base, rank, &part, logits) * logits_size(base->vocabulary);
    }
}

/* Draw a token for each row (sampling.choose): the first one at which the running sum of the weights, in float64,
   passes noise times their total; the likeliest at temperature 0. `weights` has room for one row. */
void draw(const float *logits, long rows, long vocabulary, const double *temperatures, const double *noise,
          float *weights, int32_t *tokens, float *logprobs) {
    for (long row = 0; row < rows; row++, logits += rounded(vocabulary, PANEL)) {
        double divisor = temperatures[row] == 0.0 ? 1.0 : temperatures[row], total = 0.0, running = 0.0;
        float factor = (float)(1.0 / divisor), largest = logits[0];
        long likeliest = 0, token = -1;
        for (long at = 1; at < vocabulary; at++)
            if (logits[at] > largest) largest = logits[at], likeliest = at;
        for (long at = 0; at < vocabulary; at += LANES) /* beyond the last token there are zeros, which are not read */
            store(weights + at, exponential((load(logits + at) - largest) * factor));
        for (long at = 0; at < vocabulary; at++) total += weights[at];
        if (temperatures[row] != 0.0)
            for (long at = 0; at < vocabulary && token < 0; at++)
                if ((running += weights[at]) > noise[row] * total) token = at;
        if (token < 0) token = likeliest;
        tokens[row] = (int32_t)token;
        logprobs[row] = (float)(((double)logits[token] - largest) / divisor - log(total));
    }
}
