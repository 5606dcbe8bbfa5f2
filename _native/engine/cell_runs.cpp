#include "cell_runs.h"

#include <algorithm>
#include <cstdint>

namespace llamaserve {

bool gathers_cells(const KvMemory & memory, const ContextOptions & options) {
    return options.gathers_cells && memory.can_share() && options.flash_attention != LLAMA_FLASH_ATTN_TYPE_DISABLED &&
           !llama_supports_gpu_offload();
}

CellRuns::CellRuns(KvMemory & memory, KvStates & states, Sequences & sequences, Faults & faults, bool is_on)
    : memory_(memory), states_(states), sequences_(sequences), faults_(faults), is_on_(is_on) {}

void CellRuns::gather() {
    if (!is_on_) {
        return;
    }
    copy_out();
    if (moves_.size() > 1) {  // one alone would come back to where it was, between cells that stay
        free_cells();
        put_back();
    }
    moves_.clear();
}

bool CellRuns::is_due() const {
    return is_on_ && std::any_of(sequences_.begin(), sequences_.end(), [](const std::unique_ptr<Sequence> & sequence) {
        return sequence != nullptr && sequence->n_scattered() >= most_scattered;
    });
}

// Of a sequence that cannot be copied the cells stay where they are.
void CellRuns::copy_out() {
    for (size_t i = 0; i < sequences_.size(); i++) {
        Sequence * sequence = sequences_[i].get();
        if (sequence == nullptr || !sequence->broken.empty() || sequence->n_scattered() < least_run) {
            continue;
        }
        if (auto cells = states_.save((llama_seq_id) i, sequence->n_gathered, SIZE_MAX)) {
            moves_.push_back({(llama_seq_id) i, std::move(cells)});
        }
        sequence->n_gathered = sequence->n_past;
    }
}

void CellRuns::free_cells() {
    const auto stays = [this](const Move & move) { return !memory_.trim(move.seq_id, move.cells->start); };
    moves_.erase(std::remove_if(moves_.begin(), moves_.end(), stays), moves_.end());
}

void CellRuns::put_back() {
    for (const Move & move : moves_) {
        if (faults_.next_return_fails() || !states_.restore(move.seq_id, *move.cells)) {
            sequences_[move.seq_id]->forget();
            sequences_[move.seq_id]->broken = "its cells could not be put back after they were gathered";
            memory_.trim(move.seq_id, 0);
        }
    }
}

}  // namespace llamaserve
