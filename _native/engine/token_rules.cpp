#include "token_rules.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "error.h"

namespace llamaserve {
namespace {

std::vector<llama_token> checked(const std::vector<int64_t> & tokens, const Model & model) {
    std::vector<llama_token> ids;
    for (const int64_t token : tokens) {
        if (!model.has_token(token)) {
            throw BadTokenError(token, model.n_vocab());
        }
        ids.push_back((llama_token) token);
    }
    return ids;
}

void sort_unique(std::vector<llama_token> & ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

TokenRules::TokenRules(const SamplerSpec & spec, const Model & model, const std::vector<llama_logit_bias> & biases)
    : allowed_(checked(spec.allowed_tokens, model)), n_before_end_(spec.min_tokens) {
    sort_unique(allowed_);
    const std::vector<llama_token> stop_tokens = checked(spec.stop_tokens, model);
    if (n_before_end_ > 0) {
        ends_ = stop_tokens;
        ends_.insert(ends_.end(), model.eog_tokens().begin(), model.eog_tokens().end());
        sort_unique(ends_);
    }
    for (const std::vector<int64_t> & word : spec.bad_words) {
        if (!word.empty()) {
            bad_words_.push_back(checked(word, model));
            n_kept_ = std::max(n_kept_, word.size() - 1);
        }
    }
    check_leaves_a_token(model, biases);
}

// Bars every last token of a bad word where few tokens are allowed, since all of them may be barred at once; else only
// those that are always barred, for no text ends with all others.
void TokenRules::check_leaves_a_token(const Model & model, const std::vector<llama_logit_bias> & biases) const {
    if (biases.empty() && allowed_.empty() && bad_words_.empty() && ends_.empty()) {
        return;
    }
    std::vector<bool> may_draw(model.n_vocab(), allowed_.empty());
    for (const llama_token token : allowed_) {
        may_draw[token] = true;
    }
    for (const llama_logit_bias & bias : biases) {
        if (bias.bias == -INFINITY) {
            may_draw[bias.token] = false;
        }
    }
    const auto check = [&](const char * param, const std::string & value) {
        if (std::find(may_draw.begin(), may_draw.end(), true) == may_draw.end()) {
            throw BadSamplerError(param, value, "one that leaves a token to draw");
        }
    };
    if (allowed_.empty()) {
        check("logit_bias", "a ban on all " + std::to_string(model.n_vocab()) + " tokens");
    } else {
        check("allowed_token_ids", std::to_string(allowed_.size()) + " tokens, all forbidden");
    }
    for (const std::vector<llama_token> & word : bad_words_) {
        if (word.size() == 1 || !allowed_.empty()) {
            may_draw[word.back()] = false;
        }
    }
    check("bad_words", "a ban on every token left");
    for (const llama_token token : ends_) {
        may_draw[token] = false;
    }
    check("min_tokens", std::to_string(n_before_end_) + ", and every token that may be drawn ends the text");
}

const std::vector<llama_token> & TokenRules::barred() {
    barred_.clear();
    if (n_before_end_ > 0) {
        barred_ = ends_;
    }
    for (const std::vector<llama_token> & word : bad_words_) {
        if (has_just_drawn(word, word.size() - 1)) {
            barred_.push_back(word.back());
        }
    }
    if (!bad_words_.empty()) {
        sort_unique(barred_);
    }
    return barred_;
}

bool TokenRules::has_just_drawn(const std::vector<llama_token> & tokens, size_t n_tokens) const {
    return drawn_.size() >= n_tokens && std::equal(tokens.begin(), tokens.begin() + n_tokens, drawn_.end() - n_tokens);
}

void TokenRules::take_note(llama_token drawn) {
    if (n_before_end_ > 0) {
        n_before_end_--;
    }
    if (n_kept_ == 0) {
        return;
    }
    if (drawn_.size() >= n_kept_) {
        drawn_.erase(drawn_.begin());
    }
    drawn_.push_back(drawn);
}

}  // namespace llamaserve
