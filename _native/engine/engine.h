// A model with its context: open sequences, run steps on the worker, close them.
//
// Threads: one caller (the scheduler thread) and one worker. Sequences and memory are touched by the worker while a
// step is outstanding and by the caller otherwise; every public call but `submit` and `collect` waits for the step
// first, so the two never meet. libllama aborts the process on bad input: everything is checked before the call.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batch.h"
#include "cancel_flag.h"
#include "context.h"
#include "kv_memory.h"
#include "llama_handles.h"
#include "model.h"
#include "sampler.h"
#include "step.h"
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

    // Start a sequence with a sampler of its own; it goes on from what the memory holds under this id, which is nothing
    // unless memory_seq_cp put it there. Throws EngineError if the id is open or out of range, BadTokenError for a bias.
    void open(llama_seq_id seq_id, const SamplerSpec & spec);
    // Forget a sequence and free its cells; whether it was open.
    bool close(llama_seq_id seq_id);

    // Start a step on the worker. Throws EngineError or BadTokenError, and starts nothing, for a plan that breaks a rule.
    int64_t submit(StepPlan plan, std::shared_ptr<CancelFlag> flag);
    // Wait for the step; one output a row, in plan order. Throws EngineError for a ticket that is not outstanding.
    std::vector<RowOutput> collect(int64_t ticket);
    // The fused step: decode, sample, detokenise and the end-of-generation check of all rows in one call.
    std::vector<RowOutput> batch_eval_sample(StepPlan plan, std::shared_ptr<CancelFlag> flag) {
        return collect(submit(std::move(plan), std::move(flag)));
    }

    // As KvMemory's; a sequence that is open goes on from what it holds afterwards, and draws its last token again.
    void    memory_seq_cp(llama_seq_id source, llama_seq_id target, llama_pos from, llama_pos to);
    bool    memory_seq_rm(llama_seq_id seq_id, llama_pos from, llama_pos to);
    int64_t memory_seq_length(llama_seq_id seq_id);

    // Why the engine computes nothing any more; empty while it works. Waits for the step.
    std::string failure();

    // Of the step collected last.
    StepTime step_time() const { return collected_time_; }

    // KV cells held by open sequences.
    int64_t used_cells();

    // Free the context; later calls throw EngineDownError. The weights go with the last owner of the model. May be called
    // twice, and while a step runs: it is waited for and its outputs are lost. In a forked child nothing is freed.
    void shutdown();

private:
    struct Sequence {
        SamplerHandle              sampler;
        bool                       reads_prompt = false;  // its sampler counts prompt tokens too
        llama_pos                  n_past       = 0;      // tokens in memory
        std::optional<llama_token> drawn;                 // the last token drawn, not in memory yet
    };
    // A token of the running step and the row it belongs to.
    struct Entry {
        llama_token token;
        llama_pos   pos;
        size_t      row;
        bool        output;
    };

    // --- caller thread ---
    void       check_up() const;
    void       check_plan(const StepPlan & plan) const;
    Sequence & check_row(llama_seq_id seq_id, std::vector<bool> & seen) const;
    void       wait_for_step();
    void       warm_up();

    // --- worker thread ---
    void run_step();
    void compute_step();
    void lay_out_rows();
    void decode_range(size_t begin, size_t end);
    void fill_batch(size_t begin, size_t end);
    void halve(size_t begin, size_t end);
    int  call_decode();
    void commit();
    void draw_token(int32_t batch_index, size_t row);
    void fail_row(size_t row, RowError error, const std::string & message);
    void fail_range(size_t begin, size_t end, const std::string & message);
    void abort_pending_rows();
    void show_prompt(size_t row);

    bool is_slot(llama_seq_id seq_id) const { return seq_id >= 0 && seq_id < sizes_.n_slots; }
    bool is_open(llama_seq_id seq_id) const {
        return is_slot(seq_id) && !sequences_.empty() && sequences_[seq_id] != nullptr;
    }
    // The prompt piece of a row; null for a decode row.
    const PromptPiece * piece_of(size_t row) const;
    Sequence & sequence(size_t row) { return *sequences_[outputs_[row].seq_id]; }

    pid_t                                  owner_;  // the process that has the worker; a forked child has none
    std::shared_ptr<Model>                 model_;
    ContextOptions                         options_;
    ContextHandle                          ctx_;
    std::unique_ptr<KvMemory>              memory_;
    ContextSizes                           sizes_{};
    std::vector<std::unique_ptr<Sequence>> sequences_;  // by id; null = not open
    std::string                            lost_;       // why the context is unusable; empty = it is fine. After the
                                                        // first loss nothing of llama.cpp is called any more

    // --- the step in flight ---
    StepPlan                    plan_;
    std::shared_ptr<CancelFlag> flag_;
    std::vector<Entry>          entries_;
    std::vector<RowOutput>      outputs_;
    std::vector<llama_pos>      row_starts_;     // row -> tokens its sequence had before the step
    std::vector<size_t>         batch_entries_;  // batch index -> entry
    std::unique_ptr<Batch>      batch_;
    StepTime                    time_;
    StepTime                    collected_time_;
    int64_t                     ticket_         = 0;
    bool                        is_outstanding_ = false;

    std::unique_ptr<Worker> worker_;  // last: it stops before what it uses goes away
};

}  // namespace llamaserve
