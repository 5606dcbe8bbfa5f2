// The one thread that calls llama_decode. libgomp keeps a team of threads for each calling thread, so decoding from
// always the same one keeps that team warm; it runs one job at a time and never takes the GIL.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace llamaserve {

class Worker {
public:
    Worker();
    ~Worker();  // waits for the running job

    Worker(const Worker &)             = delete;
    Worker & operator=(const Worker &) = delete;

    // Start a job; the worker must be idle. The job must not throw.
    void submit(std::function<void()> job);
    // Wait until the worker is idle. What the job wrote is visible afterwards.
    void wait_idle();

private:
    void run();

    std::mutex              mutex_;
    std::condition_variable has_job_;
    std::condition_variable is_idle_;
    std::function<void()>   job_;
    bool                    stopping_ = false;
    std::thread             thread_;  // last: it starts when the rest is ready
};

}  // namespace llamaserve
