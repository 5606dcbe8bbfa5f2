// Which tokens a request may draw next, beside what its samplers say.
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"
#include "sampler.h"

namespace llamaserve {

class TokenRules {
public:
    // Throws BadTokenError for a token outside the vocabulary, BadSamplerError when the rules and the biases may leave no
    // token to draw.
    TokenRules(const SamplerSpec & spec, const Model & model, const std::vector<llama_logit_bias> & biases);

    // The only tokens that may be drawn, ascending; empty = all.
    const std::vector<llama_token> & allowed() const { return allowed_; }

    // Those that may not be drawn next, ascending; valid until the next call.
    const std::vector<llama_token> & barred();

    void take_note(llama_token drawn);

private:
    void check_leaves_a_token(const Model & model, const std::vector<llama_logit_bias> & biases) const;
    bool has_just_drawn(const std::vector<llama_token> & tokens, size_t n_tokens) const;

    std::vector<llama_token>              allowed_;
    int64_t                               n_before_end_;  // tokens to draw before one may end the text
    std::vector<llama_token>              ends_;          // tokens that end it; empty where nothing bars them
    std::vector<std::vector<llama_token>> bad_words_;
    size_t                                n_kept_ = 0;  // tokens the bad words look back on
    std::vector<llama_token>              drawn_;       // the last of them
    std::vector<llama_token>              barred_;
};

}  // namespace llamaserve
