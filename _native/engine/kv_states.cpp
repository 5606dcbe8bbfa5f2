#include "kv_states.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "build-info.h"
#include "error.h"

namespace llamaserve {
namespace {

using BlockSize = uint64_t;

// A part of a sequence under the id that nobody sees, for the time of a copy.
class Scratch {
public:
    explicit Scratch(const KvMemory & memory) : memory_(memory) {}
    Scratch(const KvMemory & memory, llama_seq_id source, llama_pos from, llama_pos to) : memory_(memory) {
        llama_memory_seq_cp(memory_.get(), memory_.llama_id(source), memory_.scratch_id(), from, to);
    }
    ~Scratch() { llama_memory_seq_rm(memory_.get(), memory_.scratch_id(), -1, -1); }

    Scratch(const Scratch &)             = delete;
    Scratch & operator=(const Scratch &) = delete;

    llama_seq_id id() const { return memory_.scratch_id(); }

private:
    const KvMemory & memory_;
};

constexpr size_t huge_page = 2 << 20;  // of x86-64, and of AArch64 with pages of 4 KiB; elsewhere it is an alignment

// Memory of its own, not filled; throws std::bad_alloc. In huge pages where it is large: the kernel hands out each page at
// its first touch, and with small ones that takes five times as long as the copy itself.
std::shared_ptr<uint8_t> allocate(size_t n_bytes) {
    const bool   is_large = n_bytes >= 4 * huge_page;
    const size_t n_whole  = is_large ? (n_bytes + huge_page - 1) / huge_page * huge_page : n_bytes;
    void *       bytes    = is_large ? std::aligned_alloc(huge_page, n_whole) : std::malloc(n_whole);
    if (bytes == nullptr) {
        throw std::bad_alloc();
    }
#ifdef MADV_HUGEPAGE
    if (is_large) {
        madvise(bytes, n_whole, MADV_HUGEPAGE);  // a wish: without it the pages are small
    }
#endif
    return std::shared_ptr<uint8_t>(static_cast<uint8_t *>(bytes), std::free);
}

std::string describe_layout(const KvMemory & memory, const ContextOptions & options) {
    const llama_context_params params = llama_context_default_params();
    const bool is_transposed = options.flash_attention == LLAMA_FLASH_ATTN_TYPE_DISABLED;
    std::string text = std::string("llama.cpp ") + llama_commit() + ", K " + ggml_type_name(params.type_k) + ", V " +
                       ggml_type_name(params.type_v) + (is_transposed ? " transposed" : "");
    text += options.kv_unified ? ", one pool" : ", " + std::to_string(options.n_slots) + " streams";
    text += options.swa_full ? ", whole windows" : "";
    text += memory.can_share() ? ", blocks" : "";
    return text;
}

}  // namespace

KvStates::KvStates(llama_context * ctx, KvMemory & memory, const ContextOptions & options)
    : ctx_(ctx), memory_(memory), layout_(describe_layout(memory, options)) {}

// --- save ---

std::shared_ptr<SavedState> KvStates::save(llama_seq_id seq_id, llama_pos start, size_t max_bytes) {
    const auto end = (llama_pos) memory_.length(seq_id);
    if (start < 0 || start >= end) {
        throw EngineError("sequence " + std::to_string(seq_id) + " holds " + std::to_string(end) +
                          " tokens, none from position " + std::to_string(start) + " on");
    }
    if (!memory_.can_share()) {
        if (start > 0) {
            throw EngineError("a copy from position " + std::to_string(start) +
                              " on cannot be made of memory that cannot share");
        }
        return save_whole(seq_id, end, max_bytes, 0);
    }
    // A hole in the middle of the whole would not be seen later; one at its beginning is, by pos_min.
    if (start > 0 && !memory_.is_whole_from(seq_id, start)) {
        return nullptr;
    }
    return save_blocks(seq_id, start, end, max_bytes);
}

std::shared_ptr<SavedState> KvStates::save_whole(llama_seq_id seq_id, llama_pos end, size_t max_bytes,
                                                 llama_state_seq_flags flags) {
    const size_t n_bytes = llama_state_seq_get_size_ext(ctx_, seq_id, flags);
    if (n_bytes == 0 || n_bytes > max_bytes) {
        return nullptr;
    }
    try {
        auto bytes = allocate(n_bytes);
        if (llama_state_seq_get_data_ext(ctx_, bytes.get(), n_bytes, seq_id, flags) != n_bytes) {
            return nullptr;
        }
        auto state = std::make_shared<SavedState>();
        *state     = {std::move(bytes), n_bytes, 0, end, false};
        return state;
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

// Where a block that begins at a position ends at the latest: all of a block lies within half a window, and within one
// chunk where the model attends in chunks of a window.
llama_pos KvStates::block_end(llama_pos from, llama_pos end) const {
    const int32_t n_swa = memory_.n_swa();
    if (n_swa == 0) {
        return end;
    }
    const llama_pos chunk_end = (from / n_swa + 1) * n_swa;
    return std::min({end, from + std::max(1, n_swa / 2), chunk_end});
}

std::shared_ptr<SavedState> KvStates::save_blocks(llama_seq_id seq_id, llama_pos start, llama_pos end,
                                                  size_t max_bytes) {
    size_t n_bytes = 0;
    for (llama_pos from = start; from < end; from = block_end(from, end)) {
        const Scratch block(memory_, seq_id, from, block_end(from, end));
        n_bytes += sizeof(BlockSize) + llama_state_seq_get_size_ext(ctx_, block.id(), 0);
    }
    if (n_bytes > max_bytes) {
        return nullptr;
    }
    try {
        auto      bytes = allocate(n_bytes);
        uint8_t * next  = bytes.get();
        for (llama_pos from = start; from < end; from = block_end(from, end)) {
            const Scratch   block(memory_, seq_id, from, block_end(from, end));
            const size_t    n_left = (size_t) (bytes.get() + n_bytes - next) - sizeof(BlockSize);
            const BlockSize size   = llama_state_seq_get_data_ext(ctx_, next + sizeof(size), n_left, block.id(), 0);
            if (size == 0) {
                return nullptr;
            }
            std::memcpy(next, &size, sizeof(size));
            next += sizeof(size) + size;
        }
        auto state = std::make_shared<SavedState>();
        *state     = {std::move(bytes), n_bytes, start, end, false};
        return state;
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

// --- restore ---

void KvStates::check_restorable(llama_seq_id seq_id, const SavedState & state) const {
    const int64_t n_held = memory_.length(seq_id);
    if (state.is_checkpoint) {
        throw EngineError("a checkpoint is no copy of a sequence: it can only be gone back to");
    }
    if (state.start > 0 && !memory_.can_share()) {
        throw EngineError("a state that starts at position " + std::to_string(state.start) +
                          " cannot be restored into memory that cannot share");
    }
    if (n_held != state.start) {
        throw EngineError("sequence " + std::to_string(seq_id) + " holds " + std::to_string(n_held) +
                          " tokens, the state starts at position " + std::to_string(state.start));
    }
}

bool KvStates::restore(llama_seq_id seq_id, const SavedState & state) {
    check_restorable(seq_id, state);
    const int64_t n_free = (int64_t) llama_n_ctx(ctx_) - memory_.used_cells();
    if (state.end > (int64_t) llama_n_ctx_seq(ctx_) || (memory_.can_trim() && state.end - state.start > n_free)) {
        return false;
    }
    const bool is_read = memory_.can_share()
                             ? restore_blocks(seq_id, state)
                             : llama_state_seq_set_data_ext(ctx_, state.bytes.get(), state.n_bytes, seq_id, 0) ==
                                   state.n_bytes;
    if (is_read && memory_.length(seq_id) == state.end) {
        return true;
    }
    if (!memory_.trim(seq_id, state.start)) {
        memory_.trim(seq_id, 0);
    }
    return false;
}

bool KvStates::restore_blocks(llama_seq_id seq_id, const SavedState & state) {
    const uint8_t * next   = state.bytes.get();
    size_t          n_left = state.n_bytes;
    llama_pos       from   = state.start;
    while (from < state.end) {
        BlockSize size = 0;
        if (n_left < sizeof(size)) {
            return false;
        }
        std::memcpy(&size, next, sizeof(size));
        next += sizeof(size);
        n_left -= sizeof(size);
        const Scratch block(memory_);
        if (size > n_left || llama_state_seq_set_data_ext(ctx_, next, size, block.id(), 0) != size) {
            return false;
        }
        const llama_pos to = block_end(from, state.end);
        llama_memory_seq_cp(memory_.get(), block.id(), memory_.llama_id(seq_id), from, to);
        from = to;
        next += size;
        n_left -= size;
    }
    return n_left == 0;
}

// --- checkpoints ---

std::shared_ptr<SavedState> KvStates::checkpoint(llama_seq_id seq_id, size_t max_bytes) {
    const auto end = (llama_pos) memory_.length(seq_id);
    if (end == 0) {
        throw EngineError("sequence " + std::to_string(seq_id) + " holds no token");
    }
    if (memory_.can_trim()) {
        return nullptr;
    }
    // Cells that see everything stay, and can be trimmed: llama.cpp calls the rest partial. Of a recurrent state it is all.
    auto state = save_whole(seq_id, end, max_bytes, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (state != nullptr) {
        state->is_checkpoint = true;
    }
    return state;
}

bool KvStates::go_back(llama_seq_id seq_id, const SavedState & state) {
    const int64_t n_held = memory_.length(seq_id);
    if (!state.is_checkpoint) {
        throw EngineError("a copy of a sequence is no checkpoint: it can only be restored");
    }
    if (n_held < state.end) {
        throw EngineError("sequence " + std::to_string(seq_id) + " holds " + std::to_string(n_held) +
                          " tokens, the checkpoint " + std::to_string(state.end));
    }
    const bool is_back = llama_state_seq_set_data_ext(ctx_, state.bytes.get(), state.n_bytes, seq_id,
                                                      LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == state.n_bytes &&
                         llama_memory_seq_rm(memory_.get(), seq_id, state.end, -1) &&
                         memory_.length(seq_id) == state.end;
    if (!is_back) {
        llama_memory_seq_rm(memory_.get(), seq_id, -1, -1);
    }
    return is_back;
}

}  // namespace llamaserve
