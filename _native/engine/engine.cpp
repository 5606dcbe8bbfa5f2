#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "error.h"
#include "llama_log.h"
#include "plan_checks.h"

namespace llamaserve {

Engine::Engine(std::shared_ptr<Model> model, const ContextOptions & options)
    : owner_(getpid()), model_(std::move(model)), options_(options), ctx_(make_context(*model_, options)),
      memory_(std::make_unique<KvMemory>(ctx_.get(), *model_, options)),
      states_(std::make_unique<KvStates>(ctx_.get(), *memory_, options)), can_share_(memory_->can_share()),
      n_ids_(memory_->n_ids()), state_layout_(states_->layout()) {
    sizes_.n_ctx     = llama_n_ctx(ctx_.get());
    sizes_.n_ctx_seq = llama_n_ctx_seq(ctx_.get());
    sizes_.n_batch   = (int32_t) std::min<int64_t>(options.n_batch, sizes_.n_ctx);
    sizes_.n_ubatch  = (int32_t) llama_n_ubatch(ctx_.get());
    sizes_.n_slots   = options.n_slots;

    sequences_.resize(sizes_.n_slots);
    ahead_rows_.reserve(sizes_.n_slots);
    handover_.broken.reserve(sizes_.n_slots);
    ContextOptions in_calls = options;
    in_calls.n_batch        = sizes_.n_batch;
    run_ = std::make_unique<StepRun>(ctx_.get(), *memory_, *states_, *model_, sequences_, abort_, in_calls);
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
    broken_.clear();
    ctx_.reset();
    states_.reset();
    memory_.reset();
    used_cells_ = 0;
    if (down_.empty()) {
        down_ = "the engine was shut down";
    }
}

void Engine::warm_up() {
    open(0, SamplerSpec{}, {});
    StepPlan plan;
    plan.pieces.push_back({0, {0}, true});
    const RowOutput row = batch_eval_sample(std::move(plan), nullptr).front();
    if (row.error != RowError::none) {
        throw ModelLoadError(with_llama_log("the model cannot compute a token: " + row.message));
    }
    close(0);
    memory_->clear();
    used_cells_ = 0;
    report_     = {};
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

void Engine::open(llama_seq_id seq_id, const SamplerSpec & spec, const std::vector<llama_token> & history,
                  int32_t n_top) {
    settle();
    check_up();
    check_slot_is_free(seq_id);
    auto sequence     = std::make_unique<Sequence>();
    sequence->sampler = std::make_unique<RowSampler>(spec, *model_);
    sequence->sampler->show_history(history);
    sequence->stop_tokens.assign(spec.stop_tokens.begin(), spec.stop_tokens.end());
    sequence->n_top    = n_top;
    sequence->n_past   = sequence->n_gathered = (llama_pos) memory_->length(seq_id);
    sequences_[seq_id] = std::move(sequence);
}

bool Engine::close(llama_seq_id seq_id, bool keep) {
    settle();
    if (!is_open(seq_id)) {
        return false;
    }
    const bool is_kept = keep && sequences_[seq_id]->broken.empty();
    sequences_[seq_id].reset();
    broken_.erase(std::remove(broken_.begin(), broken_.end(), seq_id), broken_.end());
    if (down_.empty() && !is_kept) {
        memory_->trim(seq_id, 0);
        used_cells_ = count_cells();
    }
    return true;
}

// After the context is lost nothing in it is of use.
int64_t Engine::count_cells() const { return run_->lost().empty() ? memory_->used_cells() : 0; }

// --- steps, on the caller's thread ---

void Engine::check_up() const {
    if (getpid() != owner_) {
        throw EngineDownError("the engine was loaded before a fork: load it in the child");
    }
    if (!down_.empty()) {
        throw EngineDownError(down_);
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
        settle();
        check_plan(plan, sequences_, sizes_.n_batch, model_->n_vocab());
    }
    check_masks(plan, model_->n_vocab());
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
    settle();
    return std::exchange(broken_, {});
}

// After this the worker is idle and memory is as the caller knows it.
void Engine::settle() {
    await_job();
    if (!is_ahead_ || worker_ == nullptr || getpid() != owner_) {
        return;
    }
    abort_.stop_all(true);
    worker_->submit([this] { take_back(); });
    worker_->wait();
    abort_.stop_all(false);
    is_ahead_   = false;
    down_       = handover_.lost;
    used_cells_ = handover_.used_cells;
    broken_.insert(broken_.end(), handover_.broken.begin(), handover_.broken.end());
}

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
        run_->draw_ahead(plan_.masks);
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

// --- what ids hold ---

void Engine::settle_memory(llama_seq_id seq_id) {
    settle();
    check_up();
    memory_->check_id(seq_id);
}

void Engine::check_is_closed(llama_seq_id seq_id) const {
    if (is_open(seq_id)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is open");
    }
}

int64_t Engine::length(llama_seq_id seq_id) {
    settle_memory(seq_id);
    return memory_->length(seq_id);
}

int64_t Engine::n_runs(llama_seq_id seq_id) {
    settle_memory(seq_id);
    return memory_->n_runs(seq_id);
}

void Engine::adopt(llama_seq_id seq_id, llama_seq_id source, llama_pos n_tokens) {
    settle_memory(seq_id);
    memory_->check_id(source);
    if (is_open(seq_id)) {
        const Sequence & sequence = *sequences_[seq_id];
        if (!sequence.broken.empty()) {
            throw EngineError("sequence " + std::to_string(seq_id) + " can only be closed: " + sequence.broken);
        }
        if (sequence.drawn && n_tokens > sequence.n_recompute) {
            throw EngineError("sequence " + std::to_string(seq_id) + " has drawn a token already");
        }
    }
    if (is_open(source)) {
        run_->gather_before_sharing(*sequences_[source], n_tokens);
    }
    memory_->adopt(seq_id, source, n_tokens);
    if (is_open(seq_id)) {
        sequences_[seq_id]->n_past = sequences_[seq_id]->n_gathered = n_tokens;
    }
    if (is_open(source)) {
        sequences_[source]->n_gathered = std::max(sequences_[source]->n_gathered, n_tokens);
    }
}

bool Engine::trim(llama_seq_id seq_id, llama_pos n_tokens) {
    settle_memory(seq_id);
    check_is_closed(seq_id);
    const int64_t n_held = memory_->length(seq_id);
    if (n_tokens < 0 || n_tokens > n_held) {
        throw EngineError("sequence " + std::to_string(seq_id) + " holds " + std::to_string(n_held) +
                          " tokens: it cannot be cut to " + std::to_string(n_tokens));
    }
    const bool is_cut = memory_->trim(seq_id, n_tokens);
    used_cells_       = count_cells();
    return is_cut;
}

std::shared_ptr<SavedState> Engine::save(llama_seq_id seq_id, llama_pos start, size_t max_bytes) {
    settle_memory(seq_id);
    return states_->save(seq_id, start, max_bytes);
}

bool Engine::restore(llama_seq_id seq_id, const SavedState & state) {
    settle_memory(seq_id);
    check_is_closed(seq_id);
    const bool is_restored = states_->restore(seq_id, state);
    used_cells_            = count_cells();
    return is_restored;
}

std::shared_ptr<SavedState> Engine::checkpoint(llama_seq_id seq_id, size_t max_bytes) {
    settle_memory(seq_id);
    return states_->checkpoint(seq_id, max_bytes);
}

bool Engine::go_back(llama_seq_id seq_id, const SavedState & state) {
    settle_memory(seq_id);
    check_is_closed(seq_id);
    const bool is_back = states_->go_back(seq_id, state);
    used_cells_        = count_cells();
    return is_back;
}

}  // namespace llamaserve
