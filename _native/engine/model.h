// A model file in memory, and what it says about itself. Immutable after load; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dry_breakers.h"
#include "llama_handles.h"

namespace llamaserve {

enum class MemoryKind { kv, sliding_window, recurrent, hybrid };

struct ModelOptions {
    std::string path;
    int32_t     n_gpu_layers  = 99;
    bool        use_mmap      = true;
    bool        use_mlock     = false;
    bool        check_tensors = false;
    bool        header_only   = false;  // read what the file says, not the weights
};

class Model {
public:
    // `on_progress` gets 0..1 on the calling thread; returning false stops the load. Throws ModelLoadError.
    static std::shared_ptr<Model> load(const ModelOptions & options, const std::function<bool(float)> & on_progress);

    // Whether the weights are here: without them there can be no context.
    bool has_weights() const { return has_weights_; }

    const llama_model * get() const { return handle_.get(); }
    llama_model *       get() { return handle_.get(); }
    const llama_vocab * vocab() const { return llama_model_get_vocab(handle_.get()); }

    std::string                        architecture() const;
    std::string                        description() const;
    std::map<std::string, std::string> metadata() const;
    std::optional<std::string>         chat_template() const;
    MemoryKind                         memory() const;

    // --- vocabulary; all of these throw BadTokenError for an id outside it ---
    int32_t n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    bool    has_token(int64_t token) const { return token >= 0 && token < n_vocab(); }
    bool    is_eog(int64_t token) const;
    // Every token that ends a generation.
    const std::vector<llama_token> & eog_tokens() const { return eog_tokens_; }
    // Prefix, suffix and middle token of a model that can fill in the middle; nothing if it has not all of them.
    std::optional<std::array<llama_token, 3>> fim_tokens() const;
    // The tokens before a repository's name and before a file's, each if the model has it.
    std::array<std::optional<llama_token>, 2> fim_context_tokens() const;
    // Appends the bytes of the token to `bytes`.
    void append_piece(int64_t token, bool special, std::string & bytes) const;

    const DryBreakers & dry_breakers() const { return dry_breakers_; }

    // Throws BadTextError for a text llama.cpp cannot take safely: too long, or with too long a run of letters.
    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;

private:
    Model(ModelHandle handle, bool has_weights);

    void check_token(int64_t token) const;

    std::vector<llama_token> tokenize_here(const std::string & text, bool add_special, bool parse_special) const;

    ModelHandle              handle_;
    bool                     has_weights_;
    std::vector<llama_token> eog_tokens_;
    DryBreakers              dry_breakers_{*this};
};

}  // namespace llamaserve
