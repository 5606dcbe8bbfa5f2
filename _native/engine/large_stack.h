// Runs recursive code of llama.cpp on a stack large enough for it: std::regex recurses once a character, the Jinja
// parser once a nesting level, and the caller's thread may have no more than half a megabyte.
#pragma once

#include <cstddef>
#include <functional>

namespace llamaserve {

// Runs `work` on a thread with at least this much stack and waits for it. What it throws is thrown here.
void run_on_large_stack(size_t stack_bytes, const std::function<void()> & work);

}  // namespace llamaserve
