#include "step_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "llama_log.h"

namespace llamaserve {
namespace {

// Adds the time of a scope to a sum of seconds.
class Stopwatch {
public:
    explicit Stopwatch(double & sum) : sum_(sum) {}
    ~Stopwatch() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

    Stopwatch(const Stopwatch &)             = delete;
    Stopwatch & operator=(const Stopwatch &) = delete;

private:
    double &                              sum_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

const std::vector<PromptPiece> no_pieces;

}  // namespace

StepRun::StepRun(llama_context * ctx, KvMemory & memory, KvStates & states, const Model & model, Sequences & sequences,
                 const AbortSwitch & abort, const ContextOptions & options)
    : ctx_(ctx), memory_(memory), model_(model), sequences_(sequences), abort_(abort),
      n_outputs_max_(n_outputs_max(model, options)), n_threads_(options.n_threads_batch),
      runs_(memory, states, sequences, faults_, gathers_cells(memory, options)), batch_(options.n_batch) {
    entries_.reserve(options.n_batch);
    batch_entries_.reserve(options.n_batch);
}

// --- whole steps and halves ---

void StepRun::compute(const StepPlan & plan) {
    try {
        begin(plan.decode, plan.pieces);
        masks_    = &plan.masks;
        purge_    = &plan.purge;
        n_purged_ = 0;
        decode_all();
    } catch (...) {
        lose("the engine failed in the middle of a step");
        fail_all_rows(lost_);
    }
    purge_ = nullptr;
}

bool StepRun::decode_ahead(const std::vector<llama_seq_id> & rows) {
    try {
        begin(rows, no_pieces);
        report_.ran_ahead = true;
        fill_batch(0, entries_.size());
        const int code = call_decode();
        if (code == 0) {
            return true;
        }
        if (code != 1 && code != -1) {  // these two leave memory as it was; after the others a part may be in it
            take_back_ahead();
        }
    } catch (...) {
        lose("the engine failed while it decoded ahead");
    }
    return false;
}

void StepRun::draw_ahead(const TokenMasks & masks) {
    try {
        masks_ = &masks;
        commit();
    } catch (...) {
        lose("the engine failed in the middle of a step");
        fail_all_rows(lost_);
    }
}

void StepRun::take_back_ahead() {
    try {
        for (size_t row = 0; row < outputs_.size(); row++) {
            if (!rewind(outputs_[row].seq_id, row_starts_[row])) {
                forget(row);
                sequence(row).broken = "a step that ran ahead could not be taken back";
            }
        }
    } catch (...) {
        lose("the engine failed while it took a step back");
    }
}

bool StepRun::all_rows_go_on() const {
    for (const RowOutput & output : outputs_) {
        if (output.error != RowError::none || output.token == RowOutput::no_token || output.is_eog) {
            return false;
        }
    }
    return true;
}

// --- from rows to tokens ---

void StepRun::begin(const std::vector<llama_seq_id> & decode, const std::vector<PromptPiece> & pieces) {
    report_ = {};
    if (runs_.is_due()) {
        const Stopwatch watch(report_.time.gather);
        runs_.gather();
    }
    const Stopwatch watch(report_.time.build);
    entries_.clear();
    outputs_.clear();
    row_starts_.clear();
    row_is_run_.clear();
    n_tops_.clear();
    outputs_.reserve(decode.size() + pieces.size());
    for (const llama_seq_id seq_id : decode) {
        add_row(seq_id, nullptr);
    }
    for (const PromptPiece & piece : pieces) {
        add_row(piece.seq_id, &piece);
    }
}

void StepRun::add_row(llama_seq_id seq_id, const PromptPiece * piece) {
    const Sequence & owner = *sequences_[seq_id];
    const size_t     row   = outputs_.size();
    RowOutput &      output = outputs_.emplace_back();
    output.seq_id           = seq_id;
    row_starts_.push_back(owner.n_past);
    n_tops_.push_back(piece == nullptr ? -1 : piece->n_top);
    row_is_run_.push_back(piece != nullptr && (llama_pos) piece->tokens.size() >= CellRuns::least_run);
    if (!owner.broken.empty()) {
        output.error   = RowError::decode;
        output.message = owner.broken;
        return;
    }
    if (piece == nullptr) {
        entries_.push_back({*owner.drawn, owner.n_past, row, Use::draw});
        return;
    }
    if (piece->n_top >= 0 && owner.n_past == 0) {
        output.scores.push_back({{piece->tokens.front(), std::nanf(""), {}}, {}});
        write_out(output.scores.back());
    }
    const size_t n_tokens = piece->tokens.size();
    for (size_t i = 0; i < n_tokens; i++) {
        const bool        is_end = i + 1 == n_tokens;
        const llama_token next   = is_end ? piece->next_token : piece->tokens[i + 1];
        Use               use    = piece->n_top >= 0 && next >= 0 ? Use::score : Use::none;
        if (is_end && piece->is_last) {
            use = Use::draw;
        }
        entries_.push_back({piece->tokens[i], owner.n_past + (llama_pos) i, row, use, next});
    }
}

// --- through llama_decode ---

// The context holds logits of so many tokens at once; only scored prompts want those of more.
void StepRun::decode_all() {
    size_t begin     = 0;
    size_t n_outputs = 0;
    for (size_t i = 0; i < entries_.size(); i++) {
        if (entries_[i].use == Use::none) {
            continue;
        }
        if (n_outputs == n_outputs_max_) {
            decode_range(begin, i);
            begin     = i;
            n_outputs = 0;
        }
        n_outputs++;
    }
    decode_range(begin, entries_.size());
}

// Decodes entries [begin, end), without those of rows that failed; purges and halves where the whole does not go.
void StepRun::decode_range(size_t begin, size_t end) {
    if (!lost_.empty()) {
        fail_range(begin, end, lost_);
        return;
    }
    fill_batch(begin, end);
    if (batch_.size() == 0) {
        return;
    }
    const size_t first_row = entries_[batch_entries_.front()].row;
    const bool   is_single = batch_.size() == 1;
    int          code      = call_decode();
    while (code == 1 && purge_one()) {
        code = call_decode();
    }
    switch (code) {
        case 0:
            commit();
            break;
        case 1:  // no room: memory is as before
            if (is_single) {
                fail_row(first_row, RowError::context_full, "no KV cell is free for the next token");
            } else {
                halve(begin, end);
            }
            break;
        case 2:  // the flag: what was computed in this call has no logits
            abort_pending_rows();
            break;
        case -1:  // a row llama.cpp refuses although it passed our checks: find it, memory is as before
            if (is_single) {
                fail_row(first_row, RowError::decode, with_llama_log("llama.cpp refused the token"));
            } else {
                halve(begin, end);
            }
            break;
        default:
            fail_range(begin, end, with_llama_log("llama_decode failed with code " + std::to_string(code)));
    }
}

void StepRun::fill_batch(size_t begin, size_t end) {
    const Stopwatch watch(report_.time.build);
    batch_.clear();
    batch_entries_.clear();
    for (size_t i = begin; i < end; i++) {
        const Entry & entry = entries_[i];
        if (outputs_[entry.row].error == RowError::none) {
            batch_.add(entry.token, entry.pos, outputs_[entry.row].seq_id, entry.use != Use::none);
            batch_entries_.push_back(i);
        }
    }
}

// Forgets the next sequence of the purge list that holds anything; whether there was one.
bool StepRun::purge_one() {
    while (purge_ != nullptr && n_purged_ < purge_->size()) {
        const llama_seq_id seq_id = (*purge_)[n_purged_++];
        if (memory_.length(seq_id) > 0 && memory_.trim(seq_id, 0)) {
            report_.purged.push_back(seq_id);
            return true;
        }
    }
    return false;
}

void StepRun::halve(size_t begin, size_t end) {
    report_.n_splits++;
    const size_t middle = begin + (end - begin) / 2;
    decode_range(begin, middle);
    decode_range(middle, end);
}

int StepRun::call_decode() {
    if (const int code = faults_.next_decode_code()) {
        return code;
    }
    if (abort_.should_abort()) {
        return 2;  // as if llama.cpp had been stopped at once
    }
    const Stopwatch watch(report_.time.decode);
    try {
        return llama_decode(ctx_, batch_.view());
    } catch (const std::exception & error) {  // llama.cpp has no try/catch of its own: the context is in an unknown state
        lose(std::string("llama.cpp failed and its context is lost: ") + error.what());
    } catch (...) {
        lose("llama.cpp failed and its context is lost");
    }
    return -3;
}

void StepRun::lose(const std::string & why) {
    if (lost_.empty()) {
        lost_ = why;
    }
}

// --- from logits to tokens ---

// Takes over what a good call computed; the logits live until the next call, so rows draw their token now.
void StepRun::commit() {
    const Stopwatch watch(report_.time.sample);
    const bool      is_alone = batch_entries_.size() == 1;
    draws_.clear();
    for (size_t i = 0; i < batch_entries_.size(); i++) {
        const Entry & entry        = entries_[batch_entries_[i]];
        Sequence &    owner        = sequence(entry.row);
        owner.n_past               = entry.pos + 1;
        if (is_alone || row_is_run_[entry.row]) {
            owner.n_gathered = owner.n_past;
        }
        if (entry.use == Use::none) {
            continue;
        }
        const float * logits = llama_get_logits_ith(ctx_, (int32_t) i);
        if (logits == nullptr) {
            fail_row(entry.row, RowError::decode, "llama.cpp gave no logits");
            continue;
        }
        draws_.push_back(draw_of(entry, logits));
    }
    compute_draws(draws_, model_.n_vocab(), n_threads_);
    for (RowDraw & draw : draws_) {
        finish_draw(draw);
    }
}

RowDraw StepRun::draw_of(const Entry & entry, const float * logits) {
    if (entry.use == Use::score) {
        return {entry.row, logits, nullptr, nullptr, entry.next, n_tops_[entry.row]};
    }
    const Sequence & owner = sequence(entry.row);
    const auto       mask  = masks_->find(outputs_[entry.row].seq_id);
    return {entry.row, logits, owner.sampler.get(), mask == masks_->end() ? nullptr : &mask->second, -1, owner.n_top};
}

void StepRun::finish_draw(RowDraw & draw) {
    RowOutput & output = outputs_[draw.row];
    if (output.error != RowError::none) {  // by another token of the row
        return;
    }
    if (draw.error != RowError::none) {
        fail_row(draw.row, draw.error, draw.message);
        return;
    }
    if (draw.n_top >= 0) {
        write_out(draw.score);
        output.scores.push_back(std::move(draw.score));
    }
    if (draw.sampler != nullptr) {
        output.token             = draw.token;
        output.is_eog            = model_.is_eog(draw.token) || sequence(draw.row).stops_at(draw.token);
        sequence(draw.row).drawn = draw.token;
        model_.append_piece(draw.token, false, output.piece);
    }
}

void StepRun::write_out(TokenScore & score) const {
    model_.append_piece(score.chosen.token, true, score.chosen.piece);
    for (TokenProb & likely : score.top) {
        model_.append_piece(likely.token, true, likely.piece);
    }
}

// --- rows that fail ---

void StepRun::fail_row(size_t row, RowError error, const std::string & message) {
    outputs_[row].error   = error;
    outputs_[row].message = message;
    outputs_[row].scores.clear();
    Sequence & owner      = sequence(row);
    if (error == RowError::decode || error == RowError::no_token) {
        forget(row);
        return;
    }
    // A part of the row may be in memory: the sequence goes back to where it was, so that the row can be tried again.
    if (rewind(outputs_[row].seq_id, row_starts_[row])) {
        owner.n_past     = row_starts_[row];
        owner.n_gathered = std::min(owner.n_gathered, owner.n_past);
        return;
    }
    forget(row);
    owner.broken = message + ", and its memory cannot go back to where it was";
    if (error == RowError::context_full) {
        outputs_[row].error = RowError::decode;
    }
}

void StepRun::forget(size_t row) {
    if (lost_.empty()) {
        memory_.trim(outputs_[row].seq_id, 0);
    }
    sequence(row).forget();
}

void StepRun::fail_range(size_t begin, size_t end, const std::string & message) {
    for (size_t i = begin; i < end; i++) {
        const size_t row = entries_[i].row;
        if (outputs_[row].error == RowError::none) {
            fail_row(row, RowError::decode, message);
        }
    }
}

void StepRun::fail_all_rows(const std::string & message) {
    for (RowOutput & output : outputs_) {
        const llama_seq_id seq_id = output.seq_id;
        output                    = RowOutput{};
        output.seq_id             = seq_id;
        output.error              = RowError::decode;
        output.message            = message;
    }
}

// Rows whose token was drawn in an earlier part of the step keep it.
void StepRun::abort_pending_rows() {
    for (size_t row = 0; row < outputs_.size(); row++) {
        if (outputs_[row].error == RowError::none && outputs_[row].token == RowOutput::no_token) {
            fail_row(row, RowError::aborted, "the step was stopped");
        }
    }
}

// Removes the cells from a position on; whether the sequence ends there now.
bool StepRun::rewind(llama_seq_id seq_id, llama_pos to) {
    if (!lost_.empty() || faults_.next_rewind_fails()) {
        return false;
    }
    return memory_.trim(seq_id, to) && memory_.length(seq_id) == to;
}

}  // namespace llamaserve
