// What llama.cpp asks after every graph node of a CPU backend: shall this llama_decode stop?
#pragma once

#include <atomic>

#include "cancel_flag.h"

namespace llamaserve {

// Set by the caller's thread before it gives a job, taken away by the worker at the end of it; read by the worker in the
// middle of a step.
class AbortSwitch {
public:
    // The flag of the step that runs; null = none. It must live until it is taken away.
    void watch(const CancelFlag * flag) noexcept { flag_.store(flag, std::memory_order_release); }
    // Stops whatever runs, whatever the flag says, until taken back.
    void stop_all(bool stop) noexcept { stop_all_.store(stop, std::memory_order_relaxed); }

    bool should_abort() const noexcept {
        const CancelFlag * flag = flag_.load(std::memory_order_acquire);
        return stop_all_.load(std::memory_order_relaxed) || (flag != nullptr && flag->is_set());
    }

private:
    std::atomic<const CancelFlag *> flag_{nullptr};
    std::atomic<bool>               stop_all_{false};
};

}  // namespace llamaserve
