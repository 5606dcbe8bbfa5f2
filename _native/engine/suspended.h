// A sequence that gave its place up, and how it comes back: Engine::suspend and Engine::resume.
#pragma once

#include <memory>

#include "saved_state.h"
#include "sequence.h"

namespace llamaserve {

// With all it needs to go on as if it had not.
struct SuspendedSequence {
    Sequence                    sequence;
    std::shared_ptr<SavedState> state;  // its cells, or its recurrent state; null = the tokens must be computed again
};

}  // namespace llamaserve
