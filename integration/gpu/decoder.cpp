// Writes tokens one after another with llama.cpp, greedily, and says when each was there.
//
// usage: decoder MODEL.gguf SECONDS. Rounds of a prompt of 512 tokens and 128 tokens after it. A
// line "MICROSECONDS TOKENS" (CLOCK_MONOTONIC, sum) at each token, "prompt" where a round begins,
// and "sum N" at the end of each round: the sum of its tokens, the same in every round.
#include <llama.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

static const int PROMPT = 512, TOKENS = 128;

static uint64_t now_us() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
}

static llama_token best(const float *logits, int count) {
    int found = 0;
    for (int one = 1; one < count; one++)
        if (logits[one] > logits[found]) found = one;
    return found;
}

int main(int, char **arguments) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    llama_log_set([](ggml_log_level level, const char *text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    ggml_backend_load_all();
    llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 99;
    llama_model *model = llama_model_load_from_file(arguments[1], of_model);
    if (!model) return fprintf(stderr, "the model cannot be loaded\n"), 1;
    llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = 1024;
    of_context.n_batch = of_context.n_ubatch = PROMPT;
    llama_context *context = llama_init_from_model(model, of_context);
    if (!context) return fprintf(stderr, "no context\n"), 1;
    const int words = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const uint64_t end_us = now_us() + uint64_t(atof(arguments[2]) * 1e6);
    for (uint64_t all = 0, now = 0; now < end_us;) {
        puts("prompt");
        llama_memory_clear(llama_get_memory(context), true);
        std::vector<llama_token> prompt;
        for (int at = 0; at < PROMPT; at++) prompt.push_back((at * 7919 + 17) % words);
        if (llama_decode(context, llama_batch_get_one(prompt.data(), PROMPT))) return 1;
        uint64_t sum = 0;
        for (int at = 0; at < TOKENS; at++) {
            llama_token token = best(llama_get_logits_ith(context, -1), words);
            now = now_us();
            sum += token;
            printf("%llu %llu\n", (unsigned long long)now, (unsigned long long)++all);
            if (llama_decode(context, llama_batch_get_one(&token, 1))) return 1;
        }
        printf("sum %llu\n", (unsigned long long)sum);
    }
}
