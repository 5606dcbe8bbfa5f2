// A model with its context: open sequences, run steps on the worker, close them.
//
// Threads: one caller (the scheduler thread) and one worker. Sequences and memory are touched by the worker while it
// computes and by the caller otherwise; every call that touches them, but `submit` and `collect`, first waits for the
// worker and takes back what it computes ahead, so the two never meet. libllama aborts the process on bad input: everything is checked
// before the call.
//
// Lookahead: a step submitted with `ahead` whose rows all go on is followed at once by a decode of the same rows, while
// its outputs are with the caller. The next `submit` finds that decode running or done and only its tokens are left to
// draw; any other plan, or any other call, takes it back first.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abort_switch.h"
#include "cancel_flag.h"
#include "context.h"
#include "kv_memory.h"
#include "kv_states.h"
#include "llama_handles.h"
#include "model.h"
#include "sampler.h"
#include "sequence.h"
#include "step.h"
#include "step_run.h"
#include "suspended.h"
#include "worker.h"

namespace llamaserve {

struct ContextSizes {
    int64_t n_ctx;      // KV cells over all sequences
    int64_t n_ctx_seq;  // most tokens of one sequence
    int32_t n_batch;
    int32_t n_ubatch;
    int32_t n_slots;
};

class Engine {
public:
    // Creates the context and runs one token through it, so that the first request finds everything warm.
    // Throws ModelLoadError.
    Engine(std::shared_ptr<Model> model, const ContextOptions & options);
    ~Engine();

    const std::shared_ptr<Model> & model() const { return model_; }
    ContextSizes                   sizes() const { return sizes_; }
    // Whether memory can take the last step of a sequence back; without that no step runs ahead.
    bool can_rewind() const { return memory_ != nullptr && memory_->can_rewind(); }
    // Whether ids can hold the same cells; ids from n_slots on hold what no slot has then.
    bool can_share() const { return can_share_; }
    // Ids memory keeps books for.
    int32_t n_ids() const { return n_ids_; }
    // What a saved state depends on beside the model.
    const std::string & state_layout() const { return state_layout_; }

    // Start a sequence with a sampler of its own, which looks back on `history`; it goes on from what the memory holds under
    // this id. With `n_top` 0 or more, each token drawn comes with its probability and so many of the likeliest. Throws
    // EngineError if the id is open or out of range, BadTokenError and BadSamplerError for the sampler.
    void open(llama_seq_id seq_id, const SamplerSpec & spec, const std::vector<llama_token> & history,
              int32_t n_top = -1);
    // End a sequence and free its cells, unless they are kept under its id; whether it was open. What is broken is not kept.
    bool close(llama_seq_id seq_id, bool keep = false);

    // Start a step on the worker; with `ahead` the worker may begin the next one of the same rows before it is asked for.
    // Throws EngineError or BadTokenError, and starts nothing, for a plan that breaks a rule.
    int64_t submit(StepPlan plan, std::shared_ptr<CancelFlag> flag, bool ahead = false);
    // Wait for the step; one output a row, in plan order. Throws EngineError for a ticket that is not outstanding.
    std::vector<RowOutput> collect(int64_t ticket);
    // The fused step: decode, sample, detokenise and the end-of-generation check of all rows in one call.
    std::vector<RowOutput> batch_eval_sample(StepPlan plan, std::shared_ptr<CancelFlag> flag) {
        return collect(submit(std::move(plan), std::move(flag)));
    }
    // Take back what the worker computes ahead, if anything: cells and samplers are as after the step collected last. The
    // ids of open sequences where that failed, now or in a call that took it back itself, told once; they can only be closed.
    std::vector<llama_seq_id> unwind();

    // Close a sequence that has drawn a token, keeping what it needs to go on: its sampler, and its cells when their copy
    // takes at most max_bytes. Throws EngineError for one that has not drawn, or is broken.
    std::shared_ptr<SuspendedSequence> suspend(llama_seq_id seq_id, size_t max_bytes);
    // Open it again under any id that holds nothing. False, and nothing changed, where there is no room for its cells. One
    // without a copy of its cells goes on from what the id holds, which may be the first of its tokens, and takes the others
    // as prompt pieces, none of them the last, before it decodes. Throws EngineError if the id is open, out of range or
    // holds too much, or the sequence was resumed before.
    bool resume(llama_seq_id seq_id, SuspendedSequence & suspended);

    // --- what ids hold; all throw EngineError for an id out of range ---

    // Tokens an id holds, open or not.
    int64_t length(llama_seq_id seq_id);
    // KvMemory::adopt; an open sequence must not be through with its prompt, or with the tokens it is fed again.
    void adopt(llama_seq_id seq_id, llama_seq_id source, llama_pos n_tokens);
    // KvMemory::trim of an id that is not open and holds at least as many.
    bool trim(llama_seq_id seq_id, llama_pos n_tokens);
    // As KvStates has them; those that change what an id holds want one that is not open.
    std::shared_ptr<SavedState> save(llama_seq_id seq_id, llama_pos start, size_t max_bytes);
    bool                        restore(llama_seq_id seq_id, const SavedState & state);
    std::shared_ptr<SavedState> checkpoint(llama_seq_id seq_id, size_t max_bytes);
    bool                        go_back(llama_seq_id seq_id, const SavedState & state);

    // Whether a decode of `ahead_rows` runs or is done that nobody asked for yet, as of the step collected last.
    bool                              is_ahead() const { return is_ahead_; }
    const std::vector<llama_seq_id> & ahead_rows() const { return ahead_rows_; }

    // Why the engine computes nothing any more, as of the step collected last; empty while it works.
    const std::string & failure() const { return down_; }
    // Of the step collected last.
    const StepReport & report() const { return report_; }
    // Cells in use, each counted once; tokens held, where memory has no cells. Without the step that runs ahead.
    int64_t used_cells() const { return used_cells_; }
    // In how many runs of cells next to each other an id lies; 0 where there are no cells. For tests.
    int64_t n_runs(llama_seq_id seq_id);

    // Free the context; later calls throw EngineDownError. The weights go with the last owner of the model. May be called
    // twice, and while a step runs: it is waited for and its outputs are lost. In a forked child nothing is freed.
    void shutdown();

    // For tests; while nothing runs.
    Faults & faults();

private:
    // What the worker hands over at the end of a job.
    struct Handover {
        std::vector<RowOutput>    outputs;
        StepReport                report;
        std::string               lost;
        int64_t                   used_cells = 0;
        bool                      runs_ahead = false;
        std::vector<llama_seq_id> broken;  // by taking back
    };

    // --- caller thread ---
    void check_up() const;
    void settle_memory(llama_seq_id seq_id);
    void check_is_closed(llama_seq_id seq_id) const;
    void check_slot_is_free(llama_seq_id seq_id) const;
    void check_purge(const StepPlan & plan) const;
    void await_job();
    void settle();
    void warm_up();

    // --- worker thread ---
    void run_step();
    void run_rest_of_step();
    void run_ahead();
    void take_back();
    void hand_over();

    // Caller's thread or worker's, whichever has the sequences.
    int64_t count_cells() const;

    bool is_slot(llama_seq_id seq_id) const { return seq_id >= 0 && seq_id < sizes_.n_slots; }
    bool is_open(llama_seq_id seq_id) const {
        return is_slot(seq_id) && !sequences_.empty() && sequences_[seq_id] != nullptr;
    }

    pid_t                     owner_;  // the process that has the worker; a forked child has none
    std::shared_ptr<Model>    model_;
    ContextOptions            options_;
    AbortSwitch               abort_;
    ContextHandle             ctx_;
    std::unique_ptr<KvMemory> memory_;
    std::unique_ptr<KvStates> states_;
    ContextSizes              sizes_{};
    bool                      can_share_ = false;
    int32_t                   n_ids_     = 0;
    std::string               state_layout_;
    Sequences                 sequences_;

    // --- the caller's view ---
    int64_t                     ticket_         = 0;
    bool                        is_outstanding_ = false;
    bool                        is_ahead_       = false;  // a decode nobody asked for yet runs or is done
    std::shared_ptr<CancelFlag> flag_;
    std::string                 down_;
    StepReport                  report_;
    int64_t                     used_cells_ = 0;
    std::vector<llama_seq_id>   broken_;  // by taking back, not told yet

    // --- from caller to worker, written before a job is given ---
    StepPlan plan_;
    bool     wants_ahead_ = false;

    // --- the worker's, and what it hands over ---
    std::unique_ptr<StepRun>  run_;
    std::vector<llama_seq_id> ahead_rows_;  // read by the caller while is_ahead_
    bool                      has_decoded_ahead_ = false;
    Handover                  handover_;

    std::unique_ptr<Worker> worker_;  // last: it stops before what it uses goes away
};

}  // namespace llamaserve
