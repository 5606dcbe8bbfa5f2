// What a plan must be, checked before anything of it reaches libllama, which aborts the process on bad input. Pure.
#pragma once

#include <cstdint>

#include "sequence.h"
#include "step.h"

namespace llamaserve {

// Throws EngineError for rows and pieces that their sequences cannot take now, BadTokenError for tokens outside the
// vocabulary. A broken sequence passes: its row fails alone.
void check_plan(const StepPlan & plan, const Sequences & sequences, int32_t n_batch, int32_t n_vocab);

// Throws EngineError for a mask of another size, without a token, or of a row that draws none.
void check_masks(const StepPlan & plan, int32_t n_vocab);

}  // namespace llamaserve
