// Measures the limits of this machine's CPUs, from which `baton-bench engine` computes shares of the limit.
// It reads one request per line from standard input and writes one JSON object per line to standard output.
//
//   read         Bytes per second that all threads together read from a buffer of 1 GiB on huge pages.
//
//   int8         Int8 multiplications and additions per second of all threads together, on registers, by the
//                best unit of the CPU: tiles (AMX) if it has them, else vectors.
//
//   fresh PATH   Drops a file from the page cache and reads it again through a mapping with the advice for
//                huge pages. So every program that maps it later finds the same pages.
//                Gives bytes per second.
//
// Argument: THREADS, pinned to CPUs 0, 1, ..., one per CPU. Compiled with -O3 -march=native.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>
#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

constexpr size_t HUGE_BYTES = size_t(2) << 20;
constexpr size_t BUFFER_WORDS = (size_t(1) << 30) / 8;
constexpr int64_t INT8_ROUNDS = 20'000'000;
constexpr int SUMS = 12;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

volatile uint64_t sink;

void read_words(const uint64_t * words, size_t count) {
    uint64_t sums[32] = {};
    for (size_t i = 0; i + 32 <= count; i += 32) {
        for (int j = 0; j < 32; j++) sums[j] += words[i + j];
    }
    uint64_t total = 0;
    for (uint64_t sum : sums) total += sum;
    sink = total;
}

// Runs the rounds and returns the number of multiplications and additions in one round. Twelve independent
// sums hide the latency of one. Each sum is a separate variable, so that it stays in a register.
#define EACH_SUM(DO) DO(s0) DO(s1) DO(s2) DO(s3) DO(s4) DO(s5) DO(s6) DO(s7) DO(s8) DO(s9) DO(s10) DO(s11)

#if defined(__AMX_INT8__)
// Sixteen rows of 64 bytes in each tile; four sums, two tiles of each factor.
struct alignas(64) Tiles {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

double tile_rounds() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0) return 0;
    Tiles tiles;
    for (int t = 0; t < 8; t++) {
        tiles.row_bytes[t] = 64;
        tiles.rows[t] = 16;
    }
    _tile_loadconfig(&tiles);
    alignas(64) static const uint8_t bytes[1024] = {3};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, bytes, 64);
    _tile_loadd(5, bytes, 64);
    _tile_loadd(6, bytes, 64);
    _tile_loadd(7, bytes, 64);
    for (int64_t round = 0; round < INT8_ROUNDS / 10; round++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    int sums[256];
    _tile_stored(0, sums, 64);
    sink = uint64_t(sums[0]);
    _tile_release();
    return 4.0 * 2 * 16 * 16 * 64 / 10;
}
#endif

double int8_rounds() {
#if defined(__AMX_INT8__)
    if (const double tiles = tile_rounds(); tiles > 0) return tiles;
#endif
#if defined(__AVX512VNNI__)
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
#define ZERO(sum) __m512i sum = _mm512_setzero_si512();
#define STEP(sum) sum = _mm512_dpbusd_epi32(sum, a, b); asm volatile("" : "+v"(sum));
#define SINK(sum) sink = uint64_t(_mm512_reduce_add_epi32(sum));
    const double per_sum = 128;
#elif defined(__AVX2__)
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
#define ZERO(sum) __m256i sum = _mm256_setzero_si256();
#define STEP(sum) { \
        __m256i pairs = _mm256_maddubs_epi16(a, b); \
        asm volatile("" : "+x"(pairs)); \
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones)); \
    }
#define SINK(sum) sink = uint64_t(_mm256_extract_epi32(sum, 0));
    const double per_sum = 64;
#elif defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
#define ZERO(sum) int32x4_t sum = vdupq_n_s32(0);
#define STEP(sum) sum = vdotq_s32(sum, a, b); asm volatile("" : "+w"(sum));
#define SINK(sum) sink = uint64_t(vaddvq_s32(sum));
    const double per_sum = 32;
#else
#define ZERO(sum)
#define STEP(sum)
#define SINK(sum)
    const double per_sum = 0;  // No known instruction, so the bench gives no share of the limit.
#endif
    EACH_SUM(ZERO)
    for (int64_t round = 0; round < INT8_ROUNDS; round++) {
        EACH_SUM(STEP)
    }
    EACH_SUM(SINK)
    return SUMS * per_sum;
}

// Allocates memory, on huge pages if possible, so that bandwidth is the limit and not the address translation
// of small pages.
uint64_t * buffer(size_t bytes) {
    void * memory = nullptr;
    if (posix_memalign(&memory, HUGE_BYTES, bytes) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<uint64_t *>(memory);
}

// Returns bytes per second, or 0 if the file cannot be read.
double read_afresh(const char * path) {
    const int file = open(path, O_RDONLY);
    if (file < 0) return 0;
    struct stat status;
    const size_t bytes = fstat(file, &status) == 0 ? size_t(status.st_size) : 0;
    fsync(file);
#if defined(POSIX_FADV_DONTNEED)
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
#endif
    const double start = now();
    void * map = bytes ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (map == MAP_FAILED) return 0;
#if defined(MADV_HUGEPAGE)
    madvise(map, bytes, MADV_HUGEPAGE);
#endif
    read_words(static_cast<const uint64_t *>(map), bytes / 8);
    const double seconds = now() - start;
    munmap(map, bytes);
    return double(bytes) / seconds;
}

template <typename Work> double seconds_of_all(int threads, Work work) {
    std::vector<std::thread> running;
    const double start = now();
    for (int t = 0; t < threads; t++) {
        running.emplace_back([=] { pin(t); work(t); });
    }
    for (auto & thread : running) thread.join();
    return now() - start;
}

}  // namespace

int main(int argc, char ** argv) {
    const int threads = argc == 2 ? std::atoi(argv[1]) : 0;
    if (threads < 1) return 2;
    const size_t share = BUFFER_WORDS / size_t(threads) & ~size_t(4095);
    uint64_t * words = buffer(8 * share * size_t(threads));
    if (!words) return 1;
    seconds_of_all(threads, [=](int t) {
        for (size_t i = 0; i < share; i++) words[size_t(t) * share + i] = i;
    });
    std::puts("{\"ready\": true}");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        double rate = 0;
        if (line.rfind("fresh ", 0) == 0) {
            rate = read_afresh(line.c_str() + 6);
        } else if (line == "read") {
            const double seconds = seconds_of_all(threads, [=](int t) { read_words(words + size_t(t) * share, share); });
            rate = 8.0 * double(share) * threads / seconds;
        } else {
            std::vector<double> round(size_t(threads), 0.0);
            double * per_round = round.data();
            const double seconds = seconds_of_all(threads, [=](int t) { per_round[t] = int8_rounds(); });
            rate = round[0] * double(INT8_ROUNDS) * threads / seconds;
        }
        std::printf("{\"per_second\": %.1f}\n", rate);
        std::fflush(stdout);
    }
    return 0;
}
