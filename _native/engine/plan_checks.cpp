#include "plan_checks.h"

#include <string>
#include <vector>

#include "error.h"

namespace llamaserve {
namespace {

void check_token(llama_token token, int32_t n_vocab) {
    if (token < 0 || token >= n_vocab) {
        throw BadTokenError(token, n_vocab);
    }
}

// Throws where it is not open or comes again.
const Sequence & checked_row(const Sequences & sequences, llama_seq_id seq_id, std::vector<bool> & seen) {
    if (seq_id < 0 || (size_t) seq_id >= sequences.size() || sequences[seq_id] == nullptr) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is not open");
    }
    if (seen[seq_id]) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is in the step twice");
    }
    seen[seq_id] = true;
    return *sequences[seq_id];
}

}  // namespace

void check_plan(const StepPlan & plan, const Sequences & sequences, int32_t n_batch, int32_t n_vocab) {
    const size_t n_tokens = plan.n_tokens();
    if (n_tokens == 0) {
        throw EngineError("the step has no tokens");
    }
    if (n_tokens > (size_t) n_batch) {
        throw EngineError("the step has " + std::to_string(n_tokens) + " tokens, n_batch is " +
                          std::to_string(n_batch));
    }
    std::vector<bool> seen(sequences.size());
    for (const llama_seq_id seq_id : plan.decode) {
        const Sequence & sequence = checked_row(sequences, seq_id, seen);
        if (!sequence.broken.empty()) {
            continue;  // its row fails alone
        }
        if (!sequence.drawn) {
            throw EngineError("sequence " + std::to_string(seq_id) + " has drawn no token to decode");
        }
        if (sequence.is_recomputing()) {
            throw EngineError("sequence " + std::to_string(seq_id) + " has " + std::to_string(sequence.n_past) + " of " +
                              std::to_string(sequence.n_recompute) + " tokens again: it cannot decode yet");
        }
    }
    for (const PromptPiece & piece : plan.pieces) {
        const Sequence & sequence = checked_row(sequences, piece.seq_id, seen);
        const auto       n_piece  = (int64_t) piece.tokens.size();
        if (sequence.is_recomputing()) {
            if (piece.is_last || sequence.n_past + n_piece > sequence.n_recompute) {
                throw EngineError("sequence " + std::to_string(piece.seq_id) + " takes " +
                                  std::to_string(sequence.n_recompute - sequence.n_past) +
                                  " more tokens and draws none: it goes on with the one it had");
            }
        } else if (sequence.drawn) {
            throw EngineError("sequence " + std::to_string(piece.seq_id) + " has its prompt already");
        }
        if (piece.tokens.empty()) {
            throw EngineError("a prompt piece of sequence " + std::to_string(piece.seq_id) + " is empty");
        }
        for (const llama_token token : piece.tokens) {
            check_token(token, n_vocab);
        }
        if (piece.next_token != -1) {
            if (piece.is_last) {
                throw EngineError("a piece of sequence " + std::to_string(piece.seq_id) + " is the last and has a next");
            }
            check_token(piece.next_token, n_vocab);
        }
    }
}

void check_masks(const StepPlan & plan, int32_t n_vocab) {
    size_t n_drawing = plan.decode.size();
    size_t n_used    = 0;
    for (const llama_seq_id seq_id : plan.decode) {
        n_used += plan.masks.count(seq_id);
    }
    for (const PromptPiece & piece : plan.pieces) {
        n_used += piece.is_last ? plan.masks.count(piece.seq_id) : 0;
        n_drawing += piece.is_last ? 1 : 0;
    }
    if (n_used != plan.masks.size()) {
        throw EngineError("there are " + std::to_string(plan.masks.size()) + " masks: only " + std::to_string(n_used) +
                          " are of the " + std::to_string(n_drawing) + " rows that draw a token");
    }
    for (const auto & [seq_id, mask] : plan.masks) {
        if (mask.n_bytes() != TokenMask::size_of(n_vocab)) {
            throw EngineError("the mask of sequence " + std::to_string(seq_id) + " has " +
                              std::to_string(mask.n_bytes()) + " bytes: it must have " +
                              std::to_string(TokenMask::size_of(n_vocab)));
        }
        if (!mask.allows_any(n_vocab)) {
            throw EngineError("the mask of sequence " + std::to_string(seq_id) + " allows no token");
        }
    }
}

}  // namespace llamaserve
