// Computes one step: rows to tokens, tokens through llama_decode, logits to drawn tokens. Worker thread only.
//
// A step is computed whole (`compute`), or in two halves: `decode_ahead` before anybody asked for it, then either
// `draw_ahead` or `take_back_ahead`. Nothing is drawn in the first half, so that taking it back leaves every sampler as
// it was: only the cells are removed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "abort_switch.h"
#include "batch.h"
#include "cell_runs.h"
#include "faults.h"
#include "kv_memory.h"
#include "model.h"
#include "row_draw.h"
#include "sequence.h"
#include "step.h"

namespace llamaserve {

class StepRun {
public:
    StepRun(llama_context * ctx, KvMemory & memory, KvStates & states, const Model & model, Sequences & sequences,
            const AbortSwitch & abort, const ContextOptions & options);

    // What others are about to hold too stays where it is from then on: have it lie well before. The caller's thread, while
    // the worker has nothing to do.
    void gather_before_sharing(const Sequence & source, llama_pos n_tokens) {
        if (n_tokens - source.n_gathered >= CellRuns::least_run) {
            runs_.gather();
        }
    }

    // The whole step; its outputs and its report are ready afterwards. Does not throw.
    void compute(const StepPlan & plan);

    // Decodes the rows of a plan without pieces. False if that did not go in one call: then nothing of it is in memory.
    bool decode_ahead(const std::vector<llama_seq_id> & rows);
    // What compute has left to do after decode_ahead went well. Does not throw.
    void draw_ahead(const TokenMasks & masks);
    // Forgets what decode_ahead computed. A row whose cells cannot be removed is broken from then on.
    void take_back_ahead();

    // Whether every row has a token and none of them ends its generation.
    bool all_rows_go_on() const;

    std::vector<RowOutput> take_outputs() { return std::move(outputs_); }
    StepReport             take_report() { return std::move(report_); }

    // Why the context is unusable; empty = it is fine. After the first loss nothing of llama.cpp is called any more.
    const std::string & lost() const { return lost_; }

    Faults & faults() { return faults_; }

private:
    // What the logits behind a token are for.
    enum class Use { none, draw, score };

    // A token of the step and the row it belongs to.
    struct Entry {
        llama_token token;
        llama_pos   pos;
        size_t      row;
        Use         use;
        llama_token next = -1;  // the token to score
    };

    void begin(const std::vector<llama_seq_id> & decode, const std::vector<PromptPiece> & pieces);
    void add_row(llama_seq_id seq_id, const PromptPiece * piece);
    void decode_all();
    void decode_range(size_t begin, size_t end);
    void fill_batch(size_t begin, size_t end);
    bool purge_one();
    void halve(size_t begin, size_t end);
    int  call_decode();
    void commit();
    RowDraw draw_of(const Entry & entry, const float * logits);
    void finish_draw(RowDraw & draw);
    void write_out(TokenScore & score) const;
    void lose(const std::string & why);

    void fail_row(size_t row, RowError error, const std::string & message);
    void fail_range(size_t begin, size_t end, const std::string & message);
    void fail_all_rows(const std::string & message);
    void abort_pending_rows();
    bool rewind(llama_seq_id seq_id, llama_pos to);
    void forget(size_t row);

    Sequence & sequence(size_t row) { return *sequences_[outputs_[row].seq_id]; }

    llama_context * ctx_;
    KvMemory &      memory_;
    const Model &   model_;
    Sequences &     sequences_;
    const AbortSwitch & abort_;
    size_t          n_outputs_max_;
    int32_t         n_threads_;
    Faults          faults_;
    CellRuns        runs_;
    std::string     lost_;

    // --- the step; the vectors keep their room from one to the next, but for the outputs, which the caller takes ---
    Batch                            batch_;
    std::vector<Entry>               entries_;
    std::vector<size_t>              batch_entries_;  // batch index -> entry
    std::vector<RowOutput>           outputs_;
    std::vector<llama_pos>           row_starts_;     // row -> tokens its sequence had before the step
    std::vector<bool>                row_is_run_;     // row -> whether its cells lie side by side by themselves
    std::vector<int32_t>             n_tops_;         // row -> as its piece has it
    std::vector<RowDraw>             draws_;
    const TokenMasks *               masks_ = nullptr;  // of the plan whose tokens are drawn
    const std::vector<llama_seq_id> *purge_ = nullptr;
    size_t                           n_purged_ = 0;   // of the purge list, those tried
    StepReport                       report_;
};

}  // namespace llamaserve
