#include "model.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <exception>
#include <limits>

#include "error.h"
#include "gguf_summary.h"
#include "large_stack.h"
#include "llama_log.h"
#include "nesting.h"

namespace llamaserve {
namespace {

// llama.cpp splits text with recursive regular expressions for many vocabularies: some 320 bytes of stack a character.
constexpr size_t stack_per_character = 512;
constexpr size_t longest_text        = std::numeric_limits<int32_t>::max() / 2;
constexpr size_t harmless_run        = 512;         // fits into any thread's stack
constexpr size_t longest_allowed_run = 256 * 1024;  // a stack of 128 MiB

// Reads a string with snprintf semantics: the call returns the length it wanted.
template <typename Read> std::optional<std::string> read_text(const Read & read) {
    std::string buffer(256, '\0');
    int32_t length = read(buffer.data(), buffer.size());
    if (length >= (int32_t) buffer.size()) {
        buffer.resize(length + 1);
        length = read(buffer.data(), buffer.size());
    }
    if (length < 0) {
        return std::nullopt;
    }
    buffer.resize(length);
    return buffer;
}

llama_load_mode load_mode(const ModelOptions & options) {
    if (options.header_only) {
        return LLAMA_LOAD_MODE_NONE;
    }
    if (options.use_mmap) {
        return options.use_mlock ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP;
    }
    return options.use_mlock ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE;
}

// What this engine cannot run, in words, or nothing.
std::optional<std::string> unsupported(const llama_model * model) {
    if (llama_vocab_type(llama_model_get_vocab(model)) == LLAMA_VOCAB_TYPE_NONE) {
        return "it has no vocabulary";
    }
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        return "it has an encoder; only decoder models generate text here";
    }
    if (llama_model_is_diffusion(model)) {
        return "it is a diffusion model; only autoregressive models generate text here";
    }
    return std::nullopt;
}

// Loading computes (weights are rearranged for the processor), which leaves OpenMP threads behind that belong to the
// loading thread and never work again. libgomp counts them, finds more threads than cores and lets the worker's sleep at
// every barrier instead of spin, which costs a third of the speed.
void end_openmp_threads() {
#ifdef _OPENMP
    omp_pause_resource_all(omp_pause_soft);
#endif
}

}  // namespace

std::shared_ptr<Model> Model::load(const ModelOptions & options, const std::function<bool(float)> & on_progress) {
    check_vocabulary(options.path);
    take_llama_log();
    struct Progress {
        const std::function<bool(float)> & callback;
        bool                               cancelled = false;
        std::exception_ptr                 failure;
    } progress{on_progress, false, nullptr};

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers       = options.n_gpu_layers;
    params.load_mode          = load_mode(options);
    params.check_tensors      = options.check_tensors;
    params.no_alloc           = options.header_only;
    if (on_progress) {
        params.progress_callback = [](float done, void * data) {
            auto * state = static_cast<Progress *>(data);
            try {
                state->cancelled = state->cancelled || !state->callback(done);
            } catch (...) {  // llama.cpp would take it for a damaged file
                state->failure   = std::current_exception();
                state->cancelled = true;
            }
            return !state->cancelled;
        };
        params.progress_callback_user_data = &progress;
    }

    ModelHandle handle;
    try {
        handle.reset(llama_model_load_from_file(options.path.c_str(), params));
    } catch (const std::exception & error) {
        throw ModelLoadError(options.path + " cannot be loaded: " + error.what());
    }
    end_openmp_threads();
    if (progress.failure) {
        std::rethrow_exception(progress.failure);
    }
    if (progress.cancelled) {
        throw ModelLoadError("loading " + options.path + " was cancelled");
    }
    if (!handle) {
        throw ModelLoadError(with_llama_log(options.path + " is a damaged GGUF file, or of a kind llama.cpp cannot load"));
    }
    if (const auto reason = unsupported(handle.get())) {
        throw ModelLoadError(options.path + " cannot be served: " + *reason);
    }
    return std::shared_ptr<Model>(new Model(std::move(handle), !options.header_only));
}

Model::Model(ModelHandle handle, bool has_weights) : handle_(std::move(handle)), has_weights_(has_weights) {
    for (llama_token token = 0; token < n_vocab(); token++) {
        if (llama_vocab_is_eog(vocab(), token)) {
            eog_tokens_.push_back(token);
        }
    }
}

std::string Model::architecture() const {
    const auto name = read_text([&](char * buffer, size_t size) {
        return llama_model_meta_val_str(handle_.get(), "general.architecture", buffer, size);
    });
    return name.value_or("unknown");
}

std::string Model::description() const {
    const auto text =
        read_text([&](char * buffer, size_t size) { return llama_model_desc(handle_.get(), buffer, size); });
    return text.value_or("");
}

std::map<std::string, std::string> Model::metadata() const {
    std::map<std::string, std::string> pairs;
    const int32_t count = llama_model_meta_count(handle_.get());
    for (int32_t i = 0; i < count; i++) {
        const auto key = read_text([&](char * buffer, size_t size) {
            return llama_model_meta_key_by_index(handle_.get(), i, buffer, size);
        });
        const auto value = read_text([&](char * buffer, size_t size) {
            return llama_model_meta_val_str_by_index(handle_.get(), i, buffer, size);
        });
        if (key && value) {
            pairs.emplace(*key, *value);
        }
    }
    return pairs;
}

std::optional<std::string> Model::chat_template() const {
    const char * text = llama_model_chat_template(handle_.get(), nullptr);
    if (text == nullptr || *text == '\0') {
        return std::nullopt;
    }
    return std::string(text);
}

MemoryKind Model::memory() const {
    if (llama_model_is_recurrent(handle_.get())) {
        return MemoryKind::recurrent;
    }
    if (llama_model_is_hybrid(handle_.get())) {
        return MemoryKind::hybrid;
    }
    return llama_model_n_swa(handle_.get()) > 0 ? MemoryKind::sliding_window : MemoryKind::kv;
}

void Model::check_token(int64_t token) const {
    if (!has_token(token)) {
        throw BadTokenError(token, n_vocab());
    }
}

bool Model::is_eog(int64_t token) const {
    check_token(token);
    return llama_vocab_is_eog(vocab(), (llama_token) token);
}

std::optional<std::array<llama_token, 3>> Model::fim_tokens() const {
    const std::array tokens{llama_vocab_fim_pre(vocab()), llama_vocab_fim_suf(vocab()), llama_vocab_fim_mid(vocab())};
    for (const llama_token token : tokens) {
        if (token == LLAMA_TOKEN_NULL) {
            return std::nullopt;
        }
    }
    return tokens;
}

void Model::append_piece(int64_t token, bool special, std::string & bytes) const {
    check_token(token);
    char          buffer[64];
    const int32_t length =
        llama_token_to_piece(vocab(), (llama_token) token, buffer, sizeof(buffer), 0, special);
    if (length >= 0) {
        bytes.append(buffer, length);
        return;
    }
    const size_t start = bytes.size();
    bytes.resize(start - length);
    llama_token_to_piece(vocab(), (llama_token) token, &bytes[start], -length, 0, special);
}

std::vector<llama_token> Model::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    if (text.size() > longest_text) {
        throw BadTextError("the text has " + std::to_string(text.size()) + " bytes: at most " +
                           std::to_string(longest_text) + " can be tokenised");
    }
    const size_t run = longest_run(text);
    if (run <= harmless_run) {
        return tokenize_here(text, add_special, parse_special);
    }
    if (run > longest_allowed_run) {
        throw BadTextError("the text has " + std::to_string(run) + " letters, digits, spaces or signs in a row; at most " +
                          std::to_string(longest_allowed_run) + " can be tokenised");
    }
    std::vector<llama_token> tokens;
    run_on_large_stack(run * stack_per_character + 1024 * 1024,
                       [&] { tokens = tokenize_here(text, add_special, parse_special); });
    return tokens;
}

std::vector<llama_token> Model::tokenize_here(const std::string & text, bool add_special, bool parse_special) const {
    std::vector<llama_token> tokens(text.size() + 16);
    int32_t count = llama_tokenize(vocab(), text.data(), (int32_t) text.size(), tokens.data(),
                                   (int32_t) tokens.size(), add_special, parse_special);
    if (count < 0) {
        tokens.resize(-count);
        count = llama_tokenize(vocab(), text.data(), (int32_t) text.size(), tokens.data(), (int32_t) tokens.size(),
                               add_special, parse_special);
    }
    tokens.resize(count < 0 ? 0 : count);
    return tokens;
}

}  // namespace llamaserve
