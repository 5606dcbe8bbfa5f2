#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "error.h"
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

}  // namespace

Engine::Engine(std::shared_ptr<Model> model, const ContextOptions & options)
    : owner_(getpid()), model_(std::move(model)), options_(options), ctx_(make_context(*model_, options)),
      memory_(std::make_unique<KvMemory>(ctx_.get(), *model_, options)) {
    sizes_.n_ctx     = llama_n_ctx(ctx_.get());
    sizes_.n_ctx_seq = llama_n_ctx_seq(ctx_.get());
    sizes_.n_batch   = (int32_t) llama_n_batch(ctx_.get());
    sizes_.n_ubatch  = (int32_t) llama_n_ubatch(ctx_.get());
    sizes_.n_slots   = options.n_slots;

    sequences_.resize(sizes_.n_slots);
    batch_ = std::make_unique<Batch>(sizes_.n_batch);
    entries_.reserve(sizes_.n_batch);
    batch_entries_.reserve(sizes_.n_batch);

    const auto should_abort = [](void * data) {
        const auto & flag = static_cast<Engine *>(data)->flag_;
        return flag != nullptr && flag->is_set();
    };
    llama_set_abort_callback(ctx_.get(), should_abort, this);
    worker_ = std::make_unique<Worker>();
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
        lost_           = "the engine was loaded before a fork";
        return;
    }
    wait_for_step();
    worker_.reset();
    is_outstanding_ = false;
    flag_.reset();
    sequences_.clear();
    ctx_.reset();
    memory_.reset();
    if (lost_.empty()) {
        lost_ = "the engine was shut down";
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
}

// --- sequences ---

void Engine::open(llama_seq_id seq_id, const SamplerSpec & spec) {
    wait_for_step();
    check_up();
    if (!is_slot(seq_id)) {
        throw EngineError("sequence id " + std::to_string(seq_id) + " is outside 0.." +
                          std::to_string(sizes_.n_slots - 1));
    }
    if (is_open(seq_id)) {
        throw EngineError("sequence " + std::to_string(seq_id) + " is open already");
    }
    auto sequence          = std::make_unique<Sequence>();
    sequence->sampler      = make_sampler(spec, *model_);
    sequence->reads_prompt = spec.has_penalties();
    sequence->n_past       = (llama_pos) memory_->length(seq_id);
    sequences_[seq_id]     = std::move(sequence);
}

bool Engine::close(llama_seq_id seq_id) {
    wait_for_step();
    if (!is_open(seq_id)) {
        return false;
    }
    sequences_[seq_id].reset();
    if (lost_.empty()) {
        memory_->remove(seq_id, -1, -1);
    }
    return true;
}

std::string Engine::failure() {
    wait_for_step();
    return lost_;
}

int64_t Engine::used_cells() {
    wait_for_step();
    int64_t cells = 0;
    for (const auto & sequence : sequences_) {
        cells += sequence ? sequence->n_past : 0;
    }
    return cells;
}

// --- steps, on the caller's thread ---

void Engine::check_up() const {
    if (getpid() != owner_) {
        throw EngineDownError("the engine was loaded before a fork: load it in the child");
    }
    if (!lost_.empty()) {
        throw EngineDownError(lost_);
    }
}

Engine::Sequence & Engine::check_row(llama_seq_id seq_id, std::vector<bool> & seen) const {
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
        if (!check_row(seq_id, seen).drawn) {
            throw EngineError("sequence " + std::to_string(seq_id) + " has drawn no token to decode");
        }
    }
    for (const PromptPiece & piece : plan.pieces) {
        if (check_row(piece.seq_id, seen).drawn) {
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

int64_t Engine::submit(StepPlan plan, std::shared_ptr<CancelFlag> flag) {
    if (is_outstanding_) {
        throw EngineError("step " + std::to_string(ticket_) + " was not collected yet");
    }
    check_up();
    check_plan(plan);
    plan_           = std::move(plan);
    flag_           = std::move(flag);
    is_outstanding_ = true;
    worker_->submit([this] { run_step(); });
    return ++ticket_;
}

std::vector<RowOutput> Engine::collect(int64_t ticket) {
    if (worker_ == nullptr || getpid() != owner_) {
        check_up();
    }
    if (!is_outstanding_ || ticket != ticket_) {
        throw EngineError("step " + std::to_string(ticket) + " is not outstanding");
    }
    worker_->wait_idle();
    is_outstanding_ = false;
    flag_.reset();
    collected_time_ = time_;
    return std::move(outputs_);
}

void Engine::wait_for_step() {
    if (worker_ && getpid() == owner_) {
        worker_->wait_idle();
    }
}

// --- the step, on the worker ---

// The worker's job: nothing may be thrown out of it.
void Engine::run_step() {
    try {
        compute_step();
    } catch (...) {
        lost_ = "the engine failed in the middle of a step";
        for (RowOutput & output : outputs_) {
            const llama_seq_id seq_id = output.seq_id;
            output                    = RowOutput{};
            output.seq_id             = seq_id;
            output.error              = RowError::decode;
            output.message            = lost_;
        }
    }
}

void Engine::compute_step() {
    lay_out_rows();
    decode_range(0, entries_.size());
    for (size_t row = plan_.decode.size(); row < outputs_.size(); row++) {
        if (outputs_[row].error == RowError::none && !piece_of(row)->is_last) {
            show_prompt(row);
        }
    }
}

// Turns the plan into tokens with positions, and an output for each row.
void Engine::lay_out_rows() {
    time_ = {};
    const Stopwatch watch(time_.build);
    entries_.clear();
    outputs_.clear();
    row_starts_.clear();
    for (const llama_seq_id seq_id : plan_.decode) {
        const Sequence & sequence = *sequences_[seq_id];
        row_starts_.push_back(sequence.n_past);
        entries_.push_back({*sequence.drawn, sequence.n_past, outputs_.size(), true});
        outputs_.emplace_back().seq_id = seq_id;
    }
    for (const PromptPiece & piece : plan_.pieces) {
        const Sequence & sequence = *sequences_[piece.seq_id];
        row_starts_.push_back(sequence.n_past);
        for (size_t i = 0; i < piece.tokens.size(); i++) {
            const bool is_output = piece.is_last && i + 1 == piece.tokens.size();
            entries_.push_back({piece.tokens[i], sequence.n_past + (llama_pos) i, outputs_.size(), is_output});
        }
        outputs_.emplace_back().seq_id = piece.seq_id;
    }
}

// Decodes entries [begin, end), without those of rows that failed; halves the range where the whole does not go.
void Engine::decode_range(size_t begin, size_t end) {
    if (!lost_.empty()) {
        fail_range(begin, end, lost_);
        return;
    }
    fill_batch(begin, end);
    if (batch_->size() == 0) {
        return;
    }
    const size_t first_row = entries_[batch_entries_.front()].row;
    const bool   is_single = batch_->size() == 1;
    switch (const int code = call_decode()) {
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

void Engine::fill_batch(size_t begin, size_t end) {
    const Stopwatch watch(time_.build);
    batch_->clear();
    batch_entries_.clear();
    for (size_t i = begin; i < end; i++) {
        const Entry & entry = entries_[i];
        if (outputs_[entry.row].error == RowError::none) {
            batch_->add(entry.token, entry.pos, outputs_[entry.row].seq_id, entry.output);
            batch_entries_.push_back(i);
        }
    }
}

void Engine::halve(size_t begin, size_t end) {
    const size_t middle = begin + (end - begin) / 2;
    decode_range(begin, middle);
    decode_range(middle, end);
}

int Engine::call_decode() {
    const Stopwatch watch(time_.decode);
    try {
        return llama_decode(ctx_.get(), batch_->view());
    } catch (const std::exception & error) {  // llama.cpp has no try/catch of its own: the context is in an unknown state
        lost_ = std::string("llama.cpp failed and its context is lost: ") + error.what();
    } catch (...) {
        lost_ = "llama.cpp failed and its context is lost";
    }
    return -3;
}

// Takes over what a good call computed; the logits live until the next call, so rows draw their token now.
void Engine::commit() {
    const Stopwatch watch(time_.sample);
    for (size_t i = 0; i < batch_entries_.size(); i++) {
        const Entry & entry  = entries_[batch_entries_[i]];
        sequence(entry.row).n_past = entry.pos + 1;
        if (entry.output) {
            draw_token((int32_t) i, entry.row);
        }
    }
}

void Engine::draw_token(int32_t batch_index, size_t row) {
    Sequence &  owner  = sequence(row);
    RowOutput & output = outputs_[row];
    if (llama_get_logits_ith(ctx_.get(), batch_index) == nullptr) {  // llama_sampler_sample would abort
        fail_row(row, RowError::decode, "llama.cpp gave no logits");
        return;
    }
    try {
        show_prompt(row);
        output.token  = llama_sampler_sample(owner.sampler.get(), ctx_.get(), batch_index);
        output.is_eog = model_->is_eog(output.token);
        owner.drawn   = output.token;
        model_->append_piece(output.token, false, output.piece);
    } catch (const std::exception & error) {
        output.token = RowOutput::no_token;
        fail_row(row, RowError::decode, std::string("sampling failed: ") + error.what());
    }
}

const PromptPiece * Engine::piece_of(size_t row) const {
    return row < plan_.decode.size() ? nullptr : &plan_.pieces[row - plan_.decode.size()];
}

// Penalties count prompt tokens too; those of a piece that is taken back must not count.
void Engine::show_prompt(size_t row) {
    const PromptPiece * piece = piece_of(row);
    Sequence &          owner = sequence(row);
    if (piece == nullptr || !owner.reads_prompt) {
        return;
    }
    for (const llama_token token : piece->tokens) {
        llama_sampler_accept(owner.sampler.get(), token);
    }
}

void Engine::fail_row(size_t row, RowError error, const std::string & message) {
    outputs_[row].error   = error;
    outputs_[row].message = message;
    Sequence & owner = sequence(row);
    if (error == RowError::context_full) {
        // A half of a piece may be in memory: the row is as before the step, so that it can be tried again.
        if (memory_->remove(outputs_[row].seq_id, row_starts_[row], -1)) {
            owner.n_past = row_starts_[row];
            return;
        }
        outputs_[row].error = RowError::decode;
    }
    if (lost_.empty()) {
        memory_->remove(outputs_[row].seq_id, -1, -1);
    }
    owner.n_past = 0;
    owner.drawn.reset();
}

void Engine::fail_range(size_t begin, size_t end, const std::string & message) {
    for (size_t i = begin; i < end; i++) {
        const size_t row = entries_[i].row;
        if (outputs_[row].error == RowError::none) {
            fail_row(row, RowError::decode, message);
        }
    }
}

// Rows whose token was drawn in an earlier part of the step keep it.
void Engine::abort_pending_rows() {
    std::vector<bool> is_done(outputs_.size());
    for (size_t row = 0; row < outputs_.size(); row++) {
        is_done[row] = outputs_[row].error != RowError::none || outputs_[row].token != RowOutput::no_token;
    }
    for (size_t row = 0; row < outputs_.size(); row++) {
        if (!is_done[row]) {
            fail_row(row, RowError::aborted, "the step was stopped");
        }
    }
}

// --- memory ---

int64_t Engine::memory_seq_length(llama_seq_id seq_id) {
    wait_for_step();
    check_up();
    return memory_->length(seq_id);
}

void Engine::memory_seq_cp(llama_seq_id source, llama_seq_id target, llama_pos from, llama_pos to) {
    wait_for_step();
    check_up();
    if (is_open(target) && sequences_[target]->drawn) {
        throw EngineError("sequence " + std::to_string(target) + " has drawn a token already");
    }
    memory_->copy(source, target, from, to);
    if (is_open(target)) {
        sequences_[target]->n_past = (llama_pos) memory_->length(target);
    }
}

bool Engine::memory_seq_rm(llama_seq_id seq_id, llama_pos from, llama_pos to) {
    wait_for_step();
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
    }
    return true;
}

}  // namespace llamaserve
