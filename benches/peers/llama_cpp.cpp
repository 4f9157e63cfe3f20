// llama.cpp as a long-lived worker of `baton-bench engine`. It reads one request per line from standard input
// and writes one JSON object per line to standard output. It uses only llama.h; the bench compiles it against
// the libllama that it built.
//
// Requests:
//
//   prefill N         N tokens into an empty cache, with the logits of the last one.
//
//   decode C S        S single tokens after C others, with the logits of each. If the C are not in the cache,
//                     they are computed before the timing starts.
//
//   batch B S         B sequences of 16 tokens (not timed), then S steps of one token each.
//
// Answers: {"seconds": x} or {"error": "..."}. Tokens are the same pseudo-random ones as in Baton's worker.
//
// Arguments: MODEL THREADS REPACK(0|1) KV(f16|q8_0) CONTEXT. Threads are pinned to CPUs 0, 1, ..., one each.
#include "ggml-cpu.h"
#include "llama.h"

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

    void prefill(int tokens) {
        llama_memory_clear(llama_get_memory(single), true);
        std::vector<llama_token> ids(tokens);
        for (auto & id : ids) id = token();
        const int most = int(llama_n_batch(single));
        for (int at = 0; at < tokens; at += most) {
            llama_batch batch = llama_batch_get_one(ids.data() + at, std::min(most, tokens - at));
            decode(single, batch);
        }
        length = tokens;
    }

    double timed_prefill(int tokens) {
        const double start = now();
        prefill(tokens);
        return now() - start;
    }

    void restore(int context) {
        if (length == context) return;
        if (context == 0) {
            llama_memory_clear(llama_get_memory(single), true);
        } else if (auto found = saved.find(context); found != saved.end()) {
            llama_memory_clear(llama_get_memory(single), true);
            if (llama_state_seq_set_data(single, found->second.data(), found->second.size(), 0) == 0) {
                fail("restore the state of a sequence");
            }
        } else {
            prefill(context);
        }
        length = context;
    }

    double timed_decode(int context, int steps) {
        restore(context);
        if (context > 0 && saved.find(context) == saved.end()) {
            auto & state = saved[context];
            state.resize(llama_state_seq_get_size(single, 0));
            llama_state_seq_get_data(single, state.data(), state.size(), 0);
        }
        const double start = now();
        for (int step = 0; step < steps; step++) {
            llama_token id = token();
            llama_batch batch = llama_batch_get_one(&id, 1);
            decode(single, batch);
        }
        const double seconds = now() - start;
        llama_memory_seq_rm(llama_get_memory(single), 0, context, -1);
        return seconds;
    }

    double timed_batch(int seqs, int steps) {
        llama_memory_clear(llama_get_memory(batched), true);
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

ggml_threadpool * pinned_pool(int threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    for (int cpu = 0; cpu < threads; cpu++) params.cpumask[cpu] = true;
    params.strict_cpu = true;
    return ggml_threadpool_new(&params);
}

void answer(const std::string & line, Worker & worker) {
    std::istringstream words(line);
    std::string op;
    int a = 0, b = 0;
    words >> op >> a >> b;
    double seconds = 0;
    if (op == "prefill" && a > 0) {
        seconds = worker.timed_prefill(a);
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
    model_params.use_extra_bufts = std::atoi(argv[3]) != 0;
    worker.model = llama_model_load_from_file(argv[1], model_params);
    if (!worker.model) fail("load the model");
    worker.vocab = uint32_t(llama_vocab_n_tokens(llama_model_get_vocab(worker.model)));

    llama_context_params params = llama_context_default_params();
    params.n_threads = params.n_threads_batch = threads;
    params.type_k = params.type_v = std::strcmp(argv[4], "q8_0") == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    params.n_ctx = uint32_t(std::atoi(argv[5]));
    worker.single = llama_init_from_model(worker.model, params);
    params.n_seq_max = BATCH_SEQS;
    params.n_ctx = BATCH_SEQS * 256;
    worker.batched = llama_init_from_model(worker.model, params);
    if (!worker.single || !worker.batched) fail("make a context");
    llama_attach_threadpool(worker.single, pinned_pool(threads), nullptr);
    llama_attach_threadpool(worker.batched, pinned_pool(threads), nullptr);
    worker.prefill(64);  // Warms up and reads every weight once.
    std::puts("{\"ready\": true}");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) answer(line, worker);
    return 0;
}
