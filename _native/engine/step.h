// Plain values that cross between the scheduler and the worker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama.h"
#include "log_probs.h"
#include "token_mask.h"

namespace llamaserve {

// Consecutive prompt tokens of one sequence, following those already computed.
struct PromptPiece {
    llama_seq_id             seq_id;
    std::vector<llama_token> tokens;
    bool                     is_last;  // the prompt ends here: draw the first token
    // How likely the token after each of these was, with so many of the likeliest beside it; -1 = that is not asked.
    int32_t     n_top      = -1;
    llama_token next_token = -1;  // the prompt's token after the piece; -1 = none is known
};

// One step: decode rows first, then prompt pieces.
struct StepPlan {
    std::vector<llama_seq_id> decode;  // these feed the token they drew last
    std::vector<PromptPiece>  pieces;
    std::vector<llama_seq_id> purge;   // without a request: to be forgotten, in this order, when no cell is free
    TokenMasks                masks;   // what rows may draw in this step; a row without one may draw any token

    size_t n_tokens() const {
        size_t count = decode.size();
        for (const PromptPiece & piece : pieces) {
            count += piece.tokens.size();
        }
        return count;
    }
};

enum class RowError {
    none,
    context_full,  // no KV cell left, even alone; the sequence is as before the step
    decode,        // llama.cpp failed on it; the sequence is cleared and must be closed
    no_token,      // its mask and its sampler leave none to draw; the sequence is cleared and must be closed
    aborted,       // the step's flag stopped it; as before the step, or broken where memory cannot go back
};

// What a step did for one row.
struct RowOutput {
    static constexpr llama_token no_token = -1;

    llama_seq_id seq_id = 0;
    llama_token  token  = no_token;
    bool         is_eog = false;
    RowError     error  = RowError::none;
    std::string  piece;    // bytes of the token; empty for a control token
    std::string  message;  // what went wrong
    // For a piece that asks, of the tokens after its own, in order, and where a text begins of its first before these; then,
    // for a sequence that asks, of the token drawn.
    std::vector<TokenScore> scores;
};

// Seconds the parts of a step took on the worker.
struct StepTime {
    double build  = 0;  // laying out rows and filling the batch
    double decode = 0;  // llama_decode, all calls of the step
    double sample = 0;  // drawing tokens and turning them into bytes
    double gather = 0;  // putting cells side by side before the step
};

// About a step as a whole.
struct StepReport {
    StepTime                  time;
    std::vector<llama_seq_id> purged;             // of the plan's list, those that were forgotten
    int32_t                   n_splits  = 0;      // times a batch was halved
    bool                      ran_ahead = false;  // whether it was computed while the step before was handed over
};

}  // namespace llamaserve
