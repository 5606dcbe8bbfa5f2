// A copy of what the context holds of a sequence. A plain value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "llama.h"

namespace llamaserve {

struct SavedState {
    std::shared_ptr<const uint8_t> bytes;
    size_t                         n_bytes       = 0;
    llama_pos                      start         = 0;  // positions [start, end)
    llama_pos                      end           = 0;
    bool                           is_checkpoint = false;  // only what a trim cannot bring back, of a sequence that goes on
};

}  // namespace llamaserve
