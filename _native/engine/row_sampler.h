// Draws the tokens of one sequence.
//
// The result is that of its llama.cpp chain over all tokens that may be drawn. Where the chain begins with a choice of the
// k likeliest, only those candidates are handed to it that can be among them: the k largest logits, and the tokens whose
// logits the chain itself moves (biases, penalties, DRY).
#pragma once

#include <deque>
#include <vector>

#include "llama_handles.h"
#include "sampler.h"
#include "token_mask.h"
#include "token_rules.h"
#include "top_logits.h"

namespace llamaserve {

class RowSampler {
public:
    // Throws BadTokenError, BadSamplerError as make_sampler and TokenRules do.
    RowSampler(const SamplerSpec & spec, const Model & model);

    // What the samplers look back on beside the tokens drawn: the end of the prompt.
    void show_history(const std::vector<llama_token> & tokens);

    // The next token, from the logits of the whole vocabulary; the chain has taken note of it. Throws NoTokenError when the
    // mask and the rest leave none, std::runtime_error when the chain selects none.
    llama_token draw(const float * logits, const TokenMask * mask = nullptr);

    // For tests: the same through the chain alone.
    void use_whole_vocabulary() { n_likeliest_ = 0; }

private:
    RowSampler(const SamplerSpec & spec, const Model & model, const std::vector<llama_logit_bias> & biases);

    void fill_candidates(const float * logits);
    bool fill_likeliest(const float * logits, const TokenMask * mask);
    void fill_from(const std::vector<llama_token> & ids, const float * logits);
    bool has_equal_logits();
    void look_back_on(llama_token token);

    int32_t                       n_vocab_;
    SamplerHandle                 chain_;
    TokenRules                    rules_;
    int32_t                       n_likeliest_;  // the chain keeps at most so many tokens; 0 = it may keep all
    std::vector<llama_token>      biased_;
    size_t                        n_moved_most_;  // tokens its samplers look back on; 0 = they do not
    std::deque<llama_token>       moved_;
    TopLogits                     top_;
    std::vector<llama_token>      ids_;
    std::vector<float>            sorted_;
    std::vector<llama_token_data> candidates_;
};

}  // namespace llamaserve
