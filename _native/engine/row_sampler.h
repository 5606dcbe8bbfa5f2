// Draws the tokens of one sequence.
//
// The result is that of llama.cpp's chain over all tokens that may be drawn, their biases added. Where the chain begins with
// a choice of the k likeliest, only those candidates are handed to it that can be among them: the k largest logits, and the
// tokens whose logits move (biases, penalties, DRY).
//
// Biases are added while candidates are written, for both ascend: llama.cpp's own sampler for them compares every candidate
// with every bias as soon as a token is left out. One of -inf leaves its token out, as a rule that bars it does.
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
    RowSampler(const SamplerSpec & spec, const Model & model, std::vector<llama_logit_bias> biases);

    void merge_exceptions();
    void fill(const float * logits, const TokenMask * mask);
    void fill_from_all(const float * logits);
    void fill_from_mask(const TokenMask & mask, const float * logits);
    bool fill_likeliest(const float * logits, const TokenMask * mask);
    void fill_from(const std::vector<llama_token> & ids, const float * logits, const TokenMask * mask);
    llama_token_data * room_for(size_t n_most);
    bool has_equal_logits();
    void look_back_on(llama_token token);

    int32_t                       n_vocab_;
    SamplerHandle                 chain_;
    TokenRules                    rules_;
    int32_t                       n_likeliest_;  // the chain keeps at most so many tokens; 0 = it may keep all
    std::vector<llama_logit_bias> biases_;      // ascending
    std::vector<llama_logit_bias> exceptions_;  // the same with what is barred, which has -inf; of one draw
    size_t                        n_moved_most_;  // tokens its samplers look back on; 0 = they do not
    std::deque<llama_token>       moved_;
    TopLogits                     top_;
    std::vector<llama_token>      ids_;
    std::vector<float>            sorted_;
    std::vector<llama_token_data> candidates_;    // of the last draw the first n_candidates_
    size_t                        n_candidates_ = 0;
};

}  // namespace llamaserve
