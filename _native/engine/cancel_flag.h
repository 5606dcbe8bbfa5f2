// Stops a step from any thread. llama.cpp polls it after every graph node of a CPU backend, so it must stay this cheap.
#pragma once

#include <atomic>

namespace llamaserve {

class CancelFlag {
public:
    void set() noexcept { is_set_.store(true, std::memory_order_relaxed); }
    bool is_set() const noexcept { return is_set_.load(std::memory_order_relaxed); }

private:
    std::atomic<bool> is_set_{false};
};

}  // namespace llamaserve
