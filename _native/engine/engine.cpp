#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "error.h"
#include "llama_log.h"

namespace llamaserve {

Engine::Engine(std::shared_ptr<Model> model, const ContextOptions & options)
    : owner_(getpid()), model_(std::move(model)), options_(options), ctx_(make_context(*model_, options)),
      memory_(std::make_unique<KvMemory>(ctx_.get(), *model_, options)) {
    sizes_.n_ctx     = llama_n_ctx(ctx_.get());
    sizes_.n_ctx_seq = llama_n_ctx_seq(ctx_.get());
    sizes_.n_batch   = (int32_t) llama_n_batch(ctx_.get());
    sizes_.n_ubatch  = (int32_t) llama_n_ubatch(ctx_.get());
    sizes_.n_slots   = options.n_slots;

    sequences_.resize(sizes_.n_slots);
    ahead_rows_.reserve(sizes_.n_slots);
    handover_.broken.reserve(sizes_.n_slots);
    run_ = std::make_unique<StepRun>(ctx_.get(), *memory_, *model_, sequences_, abort_, sizes_.n_batch,
                                     options.n_threads_batch);
    if (memory_->can_rewind()) {
        // A recurrent state moves its cells in its table first and in the graph later: a graph that stops in between
        // mixes up the states of all sequences, those outside the step too.
        const auto should_abort = [](void * data) { return static_cast<AbortSwitch *>(data)->should_abort(); };
        llama_set_abort_callback(ctx_.get(), should_abort, &abort_);
    }
    worker_ = std::make_unique<Worker>([this] { run_ahead(); });
    warm_up();
}

Engine::~Engine() { shutdown(); }

void Engine::shutdown() {
    if (getpid() != owner_) {
        // A forked child has the memory but not the worker, and waiting for that would never end. The process's end
        // frees the rest.
        (void) worker_.release();
        (void) ctx_.release();
        is_outstanding_ = false;
        down_           = "the engine was loaded before a fork";
        return;
    }
    settle();
    worker_.reset();
    is_outstanding_ = false;
    flag_.reset();
    run_.reset();
    sequences_.clear();
    ctx_.reset();
    memory_.reset();
    used_cells_ = 0;
    if (down_.empty()) {
        down_ = "the engine was shut down";
    }
}

void Engine::warm_up() {
    open(0, SamplerSpec{});
    StepPlan plan;
    plan.pieces.push_back({0, {0}, true});
    const RowOutput row = batch_eval_sample(std::move(plan), nullptr).front();
    if (row.error != RowError::none) {
        throw ModelLoadError(with_llama_log("the model cannot compute a token: " + row.message));
    }
    close(0);
    memory_->clear();
    report_ = {};
}

Faults & Engine::faults() {
    settle();
    check_up();
    return run_->faults();
}

// --- sequences ---

void Engine::check_slot_is_free(llama_seq_id seq_id) const {
    if (!is_slot(seq_id)) {
        throw EngineError("sequence id " + std::to_string(seq_id) + " is outside 0.." +
                          std::to_string(sizes_.n_slots - 1));
    }
    if (is_open(seq_id)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is open already");
    }
}

void Engine::open(llama_seq_id seq_id, const SamplerSpec & spec) {
    settle();
    check_up();
    check_slot_is_free(seq_id);
    auto sequence      = std::make_unique<Sequence>();
    sequence->sampler  = std::make_unique<RowSampler>(spec, *model_);
    sequence->n_past   = (llama_pos) memory_->length(seq_id);
    sequences_[seq_id] = std::move(sequence);
    used_cells_ = count_cells();
}

bool Engine::close(llama_seq_id seq_id) {
    settle();
    if (!is_open(seq_id)) {
        return false;
    }
    sequences_[seq_id].reset();
    if (down_.empty()) {
        memory_->remove(seq_id, -1, -1);
    }
    used_cells_ = count_cells();
    return true;
}

int64_t Engine::count_cells() const {
    int64_t cells = 0;
    for (const auto & sequence : sequences_) {
        cells += sequence ? sequence->n_past : 0;
    }
    return cells;
}

std::shared_ptr<SuspendedSequence> Engine::suspend(llama_seq_id seq_id, size_t max_bytes) {
    settle();
    check_up();
    if (!is_open(seq_id)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is not open");
    }
    Sequence & sequence = *sequences_[seq_id];
    if (!sequence.broken.empty()) {
        throw EngineError("sequence " + std::to_string(seq_id) + " can only be closed: " + sequence.broken);
    }
    if (!sequence.drawn) {
        throw EngineError("sequence " + std::to_string(seq_id) + " has drawn no token: close it and start again");
    }
    auto suspended = std::make_shared<SuspendedSequence>();
    if (!sequence.is_recomputing() && memory_->state_size(seq_id) <= max_bytes) {
        try {
            suspended->state = memory_->save(seq_id);
        } catch (const std::bad_alloc &) {  // then its tokens are computed again
            suspended->state.clear();
        }
    }
    sequence.n_recompute = suspended->state.empty() ? std::max(sequence.n_past, sequence.n_recompute) : 0;
    suspended->sequence  = std::move(sequence);
    close(seq_id);
    return suspended;
}

bool Engine::resume(llama_seq_id seq_id, SuspendedSequence & suspended) {
    settle();
    check_up();
    check_slot_is_free(seq_id);
    if (suspended.sequence.sampler == nullptr) {
        throw EngineError("a suspended sequence can be resumed once");
    }
    if (memory_->length(seq_id) > 0) {
        throw EngineError("the memory of sequence " + std::to_string(seq_id) + " is not empty");
    }
    if (!suspended.state.empty() && !memory_->restore(seq_id, suspended.state)) {
        memory_->remove(seq_id, -1, -1);
        return false;
    }
    auto sequence    = std::make_unique<Sequence>(std::move(suspended.sequence));
    sequence->n_past = (llama_pos) memory_->length(seq_id);
    suspended.state.clear();
    suspended.state.shrink_to_fit();
    sequences_[seq_id] = std::move(sequence);
    used_cells_ = count_cells();
    return true;
}

// --- steps, on the caller's thread ---

void Engine::check_up() const {
    if (getpid() != owner_) {
        throw EngineDownError("the engine was loaded before a fork: load it in the child");
    }
    if (!down_.empty()) {
        throw EngineDownError(down_);
    }
}

Sequence & Engine::check_row(llama_seq_id seq_id, std::vector<bool> & seen) const {
    if (!is_open(seq_id)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is not open");
    }
    if (seen[seq_id]) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is in the step twice");
    }
    seen[seq_id] = true;
    return *sequences_[seq_id];
}

void Engine::check_plan(const StepPlan & plan) const {
    const size_t n_tokens = plan.n_tokens();
    if (n_tokens == 0) {
        throw EngineError("the step has no tokens");
    }
    if (n_tokens > (size_t) sizes_.n_batch) {
        throw EngineError("the step has " + std::to_string(n_tokens) + " tokens, n_batch is " +
                          std::to_string(sizes_.n_batch));
    }
    std::vector<bool> seen(sizes_.n_slots);
    for (const llama_seq_id seq_id : plan.decode) {
        const Sequence & sequence = check_row(seq_id, seen);
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
        const Sequence & sequence = check_row(piece.seq_id, seen);
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
            if (!model_->has_token(token)) {
                throw BadTokenError(token, model_->n_vocab());
            }
        }
    }
}

void Engine::check_purge(const StepPlan & plan) const {
    for (const llama_seq_id seq_id : plan.purge) {
        if (is_open(seq_id)) {
            throw EngineError("sequence " + std::to_string(seq_id) + " is open: it cannot be purged");
        }
        memory_->check_id(seq_id);
    }
}

int64_t Engine::submit(StepPlan plan, std::shared_ptr<CancelFlag> flag, bool ahead) {
    if (is_outstanding_) {
        throw EngineError("step " + std::to_string(ticket_) + " was not collected yet");
    }
    check_up();
    check_purge(plan);
    const bool is_next = is_ahead_ && plan.pieces.empty() && plan.decode == ahead_rows_;
    if (!is_next) {
        unwind();
        check_plan(plan);
    }
    flag_ = std::move(flag);
    abort_.watch(flag_.get());
    plan_           = std::move(plan);
    wants_ahead_    = ahead;
    is_ahead_       = false;
    is_outstanding_ = true;
    if (is_next) {
        worker_->submit([this] { run_rest_of_step(); });
    } else {
        worker_->submit([this] { run_step(); });
    }
    return ++ticket_;
}

std::vector<RowOutput> Engine::collect(int64_t ticket) {
    if (worker_ == nullptr || getpid() != owner_) {
        check_up();
    }
    if (!is_outstanding_ || ticket != ticket_) {
        throw EngineError("step " + std::to_string(ticket) + " is not outstanding");
    }
    await_job();
    is_outstanding_ = false;
    flag_.reset();
    return std::move(handover_.outputs);
}

// Waits for the worker's job and takes over what it tells; the outputs stay until they are collected.
void Engine::await_job() {
    if (worker_ == nullptr || getpid() != owner_ || !worker_->wait()) {
        return;
    }
    down_       = handover_.lost;
    report_     = std::move(handover_.report);
    used_cells_ = handover_.used_cells;
    is_ahead_   = handover_.runs_ahead;
}

std::vector<llama_seq_id> Engine::unwind() {
    await_job();
    if (!is_ahead_ || worker_ == nullptr || getpid() != owner_) {
        return {};
    }
    abort_.stop_all(true);
    worker_->submit([this] { take_back(); });
    worker_->wait();
    abort_.stop_all(false);
    is_ahead_   = false;
    down_       = handover_.lost;
    used_cells_ = handover_.used_cells;
    return std::move(handover_.broken);
}

// After this the worker is idle and memory is as the caller knows it.
void Engine::settle() { unwind(); }

// --- on the worker; nothing may be thrown out of a job ---

void Engine::run_step() {
    run_->compute(plan_);
    hand_over();
}

void Engine::run_rest_of_step() {
    if (has_decoded_ahead_ && abort_.should_abort()) {  // stopped before it was asked for, whenever it was decoded
        run_->take_back_ahead();
        has_decoded_ahead_ = false;
    }
    if (has_decoded_ahead_) {
        run_->draw_ahead();
    } else {
        run_->compute(plan_);
    }
    hand_over();
}

void Engine::hand_over() {
    abort_.watch(nullptr);  // the caller may drop the flag as soon as it has the outputs; what runs ahead has none yet
    has_decoded_ahead_   = false;
    handover_.lost       = run_->lost();
    handover_.runs_ahead = wants_ahead_ && handover_.lost.empty() && memory_->can_rewind() && run_->all_rows_go_on();
    if (handover_.runs_ahead) {
        ahead_rows_ = plan_.decode;
        for (const PromptPiece & piece : plan_.pieces) {
            ahead_rows_.push_back(piece.seq_id);
        }
        std::sort(ahead_rows_.begin(), ahead_rows_.end());
    }
    handover_.outputs    = run_->take_outputs();
    handover_.report     = run_->take_report();
    handover_.used_cells = count_cells();
}

void Engine::run_ahead() {
    if (handover_.runs_ahead) {
        has_decoded_ahead_ = run_->decode_ahead(ahead_rows_);
    }
}

void Engine::take_back() {
    abort_.watch(nullptr);
    if (has_decoded_ahead_) {
        run_->take_back_ahead();
    }
    has_decoded_ahead_   = false;
    handover_.runs_ahead = false;
    handover_.lost       = run_->lost();
    handover_.used_cells = count_cells();
    handover_.broken.clear();
    for (const llama_seq_id seq_id : ahead_rows_) {
        if (!sequences_[seq_id]->broken.empty()) {
            handover_.broken.push_back(seq_id);
        }
    }
}

// --- memory ---

int64_t Engine::memory_seq_length(llama_seq_id seq_id) {
    settle();
    check_up();
    return memory_->length(seq_id);
}

void Engine::memory_seq_cp(llama_seq_id source, llama_seq_id target, llama_pos from, llama_pos to) {
    settle();
    check_up();
    if (is_open(target) && sequences_[target]->drawn) {
        throw EngineError("sequence " + std::to_string(target) + " has drawn a token already");
    }
    memory_->copy(source, target, from, to);
    if (is_open(target)) {
        sequences_[target]->n_past = (llama_pos) memory_->length(target);
        used_cells_ = count_cells();
    }
}

bool Engine::memory_seq_rm(llama_seq_id seq_id, llama_pos from, llama_pos to) {
    settle();
    check_up();
    if (is_open(seq_id) && !memory_->is_tail(seq_id, to)) {
        throw EngineError("only the tail of an open sequence can be removed");
    }
    if (!memory_->remove(seq_id, from, to)) {
        return false;
    }
    if (is_open(seq_id)) {
        sequences_[seq_id]->n_past = (llama_pos) memory_->length(seq_id);
        sequences_[seq_id]->drawn.reset();
        used_cells_ = count_cells();
    }
    return true;
}

}  // namespace llamaserve
