// llama.cpp as a long-lived worker of `baton-bench engine`. It reads one request per line from standard input
// and writes one JSON object per line to standard output. It uses only llama.h; the bench compiles it against
// the libllama that it built. With -DIK it is compiled against the library of ik_llama.cpp.
//
// Requests:
//
//   prefill N         N tokens into an empty cache, with the logits of the last one.
//
//   extend C N        N tokens after C others, with the logits of the last one. If the C are not in the cache,
//                     they are computed before the timing starts.
//
//   decode C S        S single tokens after C others, with the logits of each. If the C are not in the cache,
//                     they are computed before the timing starts.
//
//   batch B S         B sequences of 16 tokens (not timed), then S steps of one token each.
//
// Answers: {"seconds": x} or {"error": "..."}. Tokens are the same pseudo-random ones as in Baton's worker.
//
// Arguments: MODEL THREADS REPACK(0|1) KV(f16|q8_0) CONTEXT. Threads are pinned to CPUs 0, 1, ..., one each.
#include "llama.h"
#ifndef IK
#include "ggml-cpu.h"
#endif

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int SMALL_CONTEXT = 16;  // Tokens of each sequence before a batched step.
constexpr int BATCH_SEQS = 16;
constexpr int BATCH_STEPS = 64;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string & what) {
    std::printf("{\"error\": \"%s\"}\n", what.c_str());
    std::fflush(stdout);
    std::exit(1);
}

// What the two libraries name differently.
#ifdef IK
uint32_t vocab_of(const llama_model * model) { return uint32_t(llama_n_vocab(model)); }
void clear(llama_context * context) { llama_kv_cache_clear(context); }
void cut(llama_context * context, int length) { llama_kv_cache_seq_rm(context, 0, length, -1); }
llama_batch one(llama_token * ids, int count, int position) {
    return llama_batch_get_one(ids, count, position, 0);
}
size_t state_size(llama_context * context) { return llama_state_seq_get_size(context, 0, 0); }
void get_state(llama_context * context, std::vector<uint8_t> & state) {
    llama_state_seq_get_data(context, state.data(), state.size(), 0, 0);
}
size_t set_state(llama_context * context, const std::vector<uint8_t> & state) {
    return llama_state_seq_set_data(context, state.data(), state.size(), 0, 0);
}
#else
uint32_t vocab_of(const llama_model * model) {
    return uint32_t(llama_vocab_n_tokens(llama_model_get_vocab(model)));
}
void clear(llama_context * context) { llama_memory_clear(llama_get_memory(context), true); }
void cut(llama_context * context, int length) {
    llama_memory_seq_rm(llama_get_memory(context), 0, length, -1);
}
llama_batch one(llama_token * ids, int count, int) { return llama_batch_get_one(ids, count); }
size_t state_size(llama_context * context) { return llama_state_seq_get_size(context, 0); }
void get_state(llama_context * context, std::vector<uint8_t> & state) {
    llama_state_seq_get_data(context, state.data(), state.size(), 0);
}
size_t set_state(llama_context * context, const std::vector<uint8_t> & state) {
    return llama_state_seq_set_data(context, state.data(), state.size(), 0);
}
#endif

struct Worker {
    llama_model * model = nullptr;
    llama_context * single = nullptr;   // One sequence of any length.
    llama_context * batched = nullptr;  // BATCH_SEQS short sequences.
    uint32_t vocab = 0;
    uint32_t drawn = 0;
    int length = 0;                     // Tokens in `single`.
    std::map<int, std::vector<uint8_t>> saved;  // States of `single` by length.

    llama_token token() {
        return llama_token((uint64_t(drawn++) * 2654435761u >> 7) % vocab);
    }

    void decode(llama_context * context, llama_batch & batch) {
        if (llama_decode(context, batch) != 0) fail("llama_decode");
        llama_synchronize(context);
    }

    // Appends tokens after the `from` tokens of the sequence.
    void append(int from, int tokens) {
        std::vector<llama_token> ids(tokens);
        for (auto & id : ids) id = token();
        const int most = int(llama_n_batch(single));
        for (int at = 0; at < tokens; at += most) {
            llama_batch batch = one(ids.data() + at, std::min(most, tokens - at), from + at);
            decode(single, batch);
        }
        length = from + tokens;
    }

    void prefill(int tokens) {
        clear(single);
        append(0, tokens);
    }

    double timed_prefill(int tokens) {
        const double start = now();
        prefill(tokens);
        return now() - start;
    }

    // Makes the sequence `context` tokens long. Its state is kept, so that it is computed once.
    void restore(int context) {
        if (length != context) {
            clear(single);
            auto found = saved.find(context);
            if (context > 0 && found == saved.end()) {
                prefill(context);
            } else if (context > 0 && set_state(single, found->second) == 0) {
                fail("restore the state of a sequence");
            }
            length = context;
        }
        if (context > 0 && saved.find(context) == saved.end()) {
            auto & state = saved[context];
            state.resize(state_size(single));
            get_state(single, state);
        }
    }

    double timed_extend(int context, int tokens) {
        restore(context);
        const double start = now();
        append(context, tokens);
        const double seconds = now() - start;
        cut(single, context);
        length = context;
        return seconds;
    }

    double timed_decode(int context, int steps) {
        restore(context);
        const double start = now();
        for (int step = 0; step < steps; step++) {
            llama_token id = token();
            llama_batch batch = one(&id, 1, context + step);
            decode(single, batch);
        }
        const double seconds = now() - start;
        cut(single, context);
        return seconds;
    }

    double timed_batch(int seqs, int steps) {
        clear(batched);
        llama_batch batch = llama_batch_init(seqs * SMALL_CONTEXT, 0, 1);
        auto fill = [&](int position, int tokens) {
            batch.n_tokens = 0;
            for (int seq = 0; seq < seqs; seq++) {
                for (int i = 0; i < tokens; i++) {
                    const int at = batch.n_tokens++;
                    batch.token[at] = token();
                    batch.pos[at] = position + i;
                    batch.n_seq_id[at] = 1;
                    batch.seq_id[at][0] = seq;
                    batch.logits[at] = i + 1 == tokens;
                }
            }
        };
        fill(0, SMALL_CONTEXT);
        decode(batched, batch);
        const double start = now();
        for (int step = 0; step < steps; step++) {
            fill(SMALL_CONTEXT + step, 1);
            decode(batched, batch);
        }
        const double seconds = now() - start;
        llama_batch_free(batch);
        return seconds;
    }
};

// Binds the threads of a context to the first CPUs, one each.
#ifdef IK
void bind(llama_context *, int) {}  // They are threads of OpenMP, which the bench binds.
#else
void bind(llama_context * context, int threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    for (int cpu = 0; cpu < threads; cpu++) params.cpumask[cpu] = true;
    params.strict_cpu = true;
    llama_attach_threadpool(context, ggml_threadpool_new(&params), nullptr);
}
#endif

void answer(const std::string & line, Worker & worker) {
    std::istringstream words(line);
    std::string op;
    int a = 0, b = 0;
    words >> op >> a >> b;
    double seconds = 0;
    if (op == "prefill" && a > 0) {
        seconds = worker.timed_prefill(a);
    } else if (op == "extend" && a >= 0 && b > 0) {
        seconds = worker.timed_extend(a, b);
    } else if (op == "decode" && a >= 0 && b > 0) {
        seconds = worker.timed_decode(a, b);
    } else if (op == "batch" && a > 0 && a <= BATCH_SEQS && b > 0 && b <= BATCH_STEPS) {
        seconds = worker.timed_batch(a, b);
    } else {
        fail("request not understood");
    }
    std::printf("{\"seconds\": %.9f}\n", seconds);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc != 6) fail("arguments: MODEL THREADS REPACK KV CONTEXT");
    const int threads = std::atoi(argv[2]);
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
    }, nullptr);
    llama_backend_init();
    Worker worker;
    llama_model_params model_params = llama_model_default_params();
#ifdef IK
    model_params.repack_tensors = std::atoi(argv[3]) != 0;
    model_params.use_mmap = !model_params.repack_tensors;
#else
    model_params.use_extra_bufts = std::atoi(argv[3]) != 0;
#endif
    worker.model = llama_model_load_from_file(argv[1], model_params);
    if (!worker.model) fail("load the model");
    worker.vocab = vocab_of(worker.model);

    llama_context_params params = llama_context_default_params();
    params.n_threads = params.n_threads_batch = threads;
    params.type_k = params.type_v = std::strcmp(argv[4], "q8_0") == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    params.n_ctx = uint32_t(std::atoi(argv[5]));
    worker.single = llama_init_from_model(worker.model, params);
    params.n_seq_max = BATCH_SEQS;
    params.n_ctx = BATCH_SEQS * 256;
    worker.batched = llama_init_from_model(worker.model, params);
    if (!worker.single || !worker.batched) fail("make a context");
    bind(worker.single, threads);
    bind(worker.batched, threads);
    worker.prefill(64);  // Warms up and reads every weight once.
    std::puts("{\"ready\": true}");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) answer(line, worker);
    return 0;
}
