// A GPU on one thread of a CPU, for the text of the kernels. ARCHITECTURE is what __CUDA_ARCH__ is to be.
//
// Each thread of a workgroup is a fiber with its own stack. A fiber runs until it meets a barrier of its warp
// or of its workgroup. Workgroups run one after another, so `__shared__` variables are static ones. Fibers
// that disagree about a barrier end the program.

// Jumps from fiber to fiber are not those that fortified libraries allow.
#undef _FORTIFY_SOURCE

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#define BATON_EMULATION
#define __CUDA_ARCH__ ARCHITECTURE
#define __global__ __attribute__((visibility("default")))
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace emulation {

const unsigned LANES = 32, THREADS_MAX = 1024, WORDS = 8;
const size_t STACK_BYTES = 256 * 1024;

enum State { READY, AT_WARP, AT_GROUP, DONE };

struct Fiber {
    jmp_buf at;
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool has_started = false;
    State state = DONE;
    // Counts the exchanges of the fiber; two sets of slots take turns.
    unsigned turn = 0;
    uint3 thread;
};

struct Warp {
    uint32_t slots[2][LANES][WORDS];
};

struct Engine {
    jmp_buf home;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    unsigned threads = 0;
    Fiber* current = nullptr;
    void (*body)(const void*) = nullptr;
    const void* argument = nullptr;
    uint3 group, groups, size;
};

static Engine engine;

[[noreturn]] static void fail(const char* what) {
    fprintf(stderr, "emulated GPU: %s\n", what);
    abort();
}

// Leaves the running fiber in a state until the loop of `run_group` goes on with it.
static void leave(State state) {
    Fiber* self = engine.current;
    self->state = state;
    if (_setjmp(self->at) == 0) _longjmp(engine.home, 1);
}

static void fiber_main() {
    for (;;) {
        engine.body(engine.argument);
        leave(DONE);
    }
}

static void prepare(unsigned threads) {
    if (threads > THREADS_MAX) fail("too many threads");
    while (engine.fibers.size() < threads) {
        auto fiber = std::make_unique<Fiber>();
        fiber->stack = std::make_unique<char[]>(STACK_BYTES);
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack.get();
        fiber->context.uc_stack.ss_size = STACK_BYTES;
        fiber->context.uc_link = nullptr;
        makecontext(&fiber->context, fiber_main, 0);
        engine.fibers.push_back(std::move(fiber));
    }
    engine.warps.resize((threads + LANES - 1) / LANES);
    engine.threads = threads;
}

// Runs a fiber until it leaves.
static __attribute__((noinline)) void resume(Fiber* fiber) {
    engine.current = fiber;
    fiber->state = READY;
    if (_setjmp(engine.home) == 0) {
        if (fiber->has_started) _longjmp(fiber->at, 1);
        fiber->has_started = true;
        setcontext(&fiber->context);
        fail("a fiber could not be started");
    }
}

// Runs the fibers of a warp until all wait for the workgroup or are done.
static void run_warp(unsigned first, unsigned last) {
    for (;;) {
        unsigned waiting = 0, away = 0;
        for (unsigned i = first; i < last; i++) {
            Fiber* fiber = engine.fibers[i].get();
            if (fiber->state == READY) resume(fiber);
            if (fiber->state == AT_WARP) waiting++;
            else away++;
        }
        if (waiting == 0) return;
        if (away != 0) fail("some lanes of a warp do not come to its barrier");
        for (unsigned i = first; i < last; i++) engine.fibers[i]->state = READY;
    }
}

static void run_group() {
    for (unsigned i = 0; i < engine.threads; i++) {
        engine.fibers[i]->state = READY;
        engine.fibers[i]->turn = 0;
    }
    for (;;) {
        unsigned waiting = 0, done = 0;
        for (unsigned first = 0; first < engine.threads; first += LANES) {
            unsigned last = first + LANES < engine.threads ? first + LANES : engine.threads;
            run_warp(first, last);
            for (unsigned i = first; i < last; i++) {
                if (engine.fibers[i]->state == AT_GROUP) waiting++;
                else done++;
            }
        }
        if (waiting == 0) return;
        if (done != 0) fail("some threads of a workgroup do not come to its barrier");
        for (unsigned i = 0; i < engine.threads; i++) engine.fibers[i]->state = READY;
    }
}

static unsigned lane() { return engine.current->thread.x % LANES; }

// Gives all lanes of the warp the words of all lanes.
static uint32_t (*exchange(const uint32_t* words, unsigned n))[WORDS] {
    Fiber* self = engine.current;
    auto& slots = engine.warps[self->thread.x / LANES].slots[self->turn++ % 2];
    memcpy(slots[lane()], words, n * sizeof(uint32_t));
    leave(AT_WARP);
    return slots;
}

template <class T>
T from_lane(unsigned mask, T value, unsigned source) {
    static_assert(sizeof(T) == 4, "a word");
    if (mask != 0xffffffffu) fail("lanes are left out of a shuffle");
    uint32_t word;
    memcpy(&word, &value, 4);
    memcpy(&value, exchange(&word, 1)[source % LANES], 4);
    return value;
}

// Takes an argument of a kernel from the list of buffers or of numbers.
struct Arguments {
    void* const* buffers;
    const uint32_t* numbers;
    unsigned n_buffers, n_numbers;
};

template <class T>
struct Take {
    static T take(Arguments& from) {
        T value;
        memcpy(&value, &from.numbers[from.n_numbers++], 4);
        return value;
    }
};
template <class T>
struct Take<T*> {
    static T* take(Arguments& from) { return (T*)from.buffers[from.n_buffers++]; }
};

template <class... A>
void call(void (*kernel)(A...), Arguments& from) {
    struct Bound {
        void (*kernel)(A...);
        std::tuple<A...> values;
    };
    // Braces take the arguments in order.
    Bound bound{kernel, std::tuple<A...>{Take<A>::take(from)...}};
    engine.body = [](const void* argument) {
        const Bound* bound = (const Bound*)argument;
        std::apply(bound->kernel, bound->values);
    };
    engine.argument = &bound;
    for (unsigned z = 0; z < engine.groups.z; z++) {
        for (unsigned y = 0; y < engine.groups.y; y++) {
            for (unsigned x = 0; x < engine.groups.x; x++) {
                engine.group = {x, y, z};
                run_group();
            }
        }
    }
}

template <class K>
int launch(K kernel, const uint32_t* groups, unsigned threads, void* const* buffers, unsigned n_buffers,
           const uint32_t* numbers, unsigned n_numbers) {
    prepare(threads);
    engine.groups = {groups[0], groups[1], groups[2]};
    engine.size = {threads, 1, 1};
    for (unsigned i = 0; i < threads; i++) engine.fibers[i]->thread = {i, 0, 0};
    Arguments from = {buffers, numbers, 0, 0};
    call(kernel, from);
    return from.n_buffers == n_buffers && from.n_numbers == n_numbers;
}

}  // namespace emulation

#define threadIdx (emulation::engine.current->thread)
#define blockIdx (emulation::engine.group)
#define gridDim (emulation::engine.groups)
#define blockDim (emulation::engine.size)

// A function that runs a kernel. It returns 0 if the kernel takes other numbers of buffers or numbers.
#define EMULATED(name)                                                                                       \
    extern "C" __global__ int run_##name(const uint32_t* groups, unsigned threads, void* const* buffers,     \
                                         unsigned n_buffers, const uint32_t* numbers, unsigned n_numbers) {  \
        return emulation::launch(name, groups, threads, buffers, n_buffers, numbers, n_numbers);             \
    }

static inline void __syncthreads() { emulation::leave(emulation::AT_GROUP); }
static inline void __syncwarp() { emulation::leave(emulation::AT_WARP); }

template <class T>
T __shfl_sync(unsigned mask, T value, unsigned source) {
    return emulation::from_lane(mask, value, source);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, unsigned apart) {
    return emulation::from_lane(mask, value, emulation::lane() ^ apart);
}
static inline unsigned __ballot_sync(unsigned mask, bool value) {
    if (mask != 0xffffffffu) emulation::fail("lanes are left out of a ballot");
    uint32_t word = value;
    auto slots = emulation::exchange(&word, 1);
    unsigned bits = 0;
    for (unsigned i = 0; i < emulation::LANES; i++) bits |= slots[i][0] << i;
    return bits;
}

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift % 32));
}
static inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 4; i++) {
        sum += (int)(int8_t)((unsigned)a >> 8 * i) * (int)(int8_t)((unsigned)b >> 8 * i);
    }
    return sum;
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select) {
    uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(bytes >> (select >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}

static inline float half_to_float(unsigned bits) {
    unsigned sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (rest & 1023) << 13);
    // Normal numbers: the exponent's bias grows by 112. Others count in steps of 2^-24.
    if (rest >= 0x0400) return __uint_as_float(sign | ((rest << 13) + (112u << 23)));
    float value = (float)rest * 0x1p-24f;
    return sign != 0 ? -value : value;
}
// The nearest binary16 of a number that is not NaN, ties to even.
static inline unsigned nearest_half(float value) {
    unsigned sign = __float_as_uint(value) >> 16 & 0x8000;
    double size = std::fabs((double)value);
    if (size == 0.0) return sign;
    if (size >= 65520.0) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(size, &exponent);
    // The last bit counts 2^(exponent - 11), or 2^-24 for subnormal numbers.
    int last = exponent - 11 < -24 ? -24 : exponent - 11;
    unsigned steps = (unsigned)std::nearbyint(std::ldexp(size, -last));
    return sign | (last == -24 ? steps : steps + ((unsigned)(last + 24) << 10));
}

// The tensor cores' products, as the instruction set defines who has what: lane `l` has words of row l / 4
// (and of row l / 4 + 8), of token l / 4, and elements of tokens 2 (l % 4) and 2 (l % 4) + 1.
static inline void mma_8(int& c0, int& c1, unsigned a, unsigned b) {
    uint32_t words[2] = {a, b};
    auto slots = emulation::exchange(words, 2);
    unsigned row = emulation::lane() / 4, token = emulation::lane() % 4 * 2;
    for (unsigned i = 0; i < 4; i++) {
        int left = (int)slots[row * 4 + i][0];
        c0 = __dp4a(left, (int)slots[token * 4 + i][1], c0);
        c1 = __dp4a(left, (int)slots[token * 4 + 4 + i][1], c1);
    }
}

#if ARCHITECTURE >= 750
// Of halves, rounded once.
static inline void mma_halves(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    auto slots = emulation::exchange(words, 6);
    unsigned lane = emulation::lane();
    for (int e = 0; e < 4; e++) {
        unsigned row = lane / 4, column = lane % 4 * 2 + e % 2;
        double sum = c[e];
        for (unsigned i = 0; i < 8; i++) {
            uint32_t left = slots[row * 4 + i % 4][i / 4 * 2 + e / 2];
            uint32_t right = slots[column * 4 + i % 4][4 + i / 4];
            sum += (double)half_to_float(left & 0xffff) * half_to_float(right & 0xffff);
            sum += (double)half_to_float(left >> 16) * half_to_float(right >> 16);
        }
        c[e] = (float)sum;
    }
}
#endif

#if ARCHITECTURE >= 800
static inline void mma(int (&c)[4], const unsigned* a, const unsigned* b, int steps) {
    uint32_t words[emulation::WORDS] = {a[0], a[1], steps > 1 ? a[2] : 0, steps > 1 ? a[3] : 0,
                                        b[0], steps > 1 ? b[1] : 0};
    auto slots = emulation::exchange(words, 6);
    unsigned lane = emulation::lane();
    for (int e = 0; e < 4; e++) {
        unsigned row = lane / 4, token = lane % 4 * 2 + e % 2;
        for (int step = 0; step < steps; step++) {
            for (unsigned i = 0; i < 4; i++) {
                unsigned left = slots[row * 4 + i][2 * step + e / 2], right = slots[token * 4 + i][4 + step];
                c[e] = __dp4a((int)left, (int)right, c[e]);
            }
        }
    }
}
static inline void mma_32(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma(c, a, b, 2); }
static inline void mma_16(int (&c)[4], const unsigned (&a)[4], unsigned b) { mma(c, a, &b, 1); }
#endif
