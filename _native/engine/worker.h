// The one thread that calls llama_decode. libgomp keeps a team of threads for each calling thread, so decoding from
// always the same one keeps that team warm; it runs one job at a time and never takes the GIL.
//
// Worker and caller wake each other through pipes, not condition variables: a write to a pipe tells the kernel that the
// writer is about to sleep, and it runs the other on the writer's core. Woken by a futex they queue behind an OpenMP
// thread that spins on the other core, up to half a millisecond a token where threads and cores are equally many.
#pragma once

#include <functional>
#include <thread>

namespace llamaserve {

// One byte from one thread to another.
class Bell {
public:
    Bell();
    ~Bell();

    Bell(const Bell &)             = delete;
    Bell & operator=(const Bell &) = delete;

    void ring();
    void wait();  // for one ring; what was written before it is visible afterwards

private:
    int ends_[2];  // read, write
};

class Worker {
public:
    // `after_job` runs on the worker after each job, when the caller has been told that the job is done.
    explicit Worker(std::function<void()> after_job);
    ~Worker();  // waits for what runs

    Worker(const Worker &)             = delete;
    Worker & operator=(const Worker &) = delete;

    // Start a job; the one before must have been waited for. It begins when the worker is through with what it does
    // after that one. Jobs must not throw. One thread calls these two.
    void submit(std::function<void()> job);
    // Wait until the job is done. What it wrote is visible afterwards. Whether there was a job to wait for.
    bool wait();

private:
    void run();

    Bell                  job_given_;
    Bell                  job_done_;
    std::function<void()> after_job_;
    std::function<void()> job_;              // empty = end
    bool                  is_busy_ = false;  // the caller's: a job was given and not waited for
    std::thread           thread_;           // last: it starts when the rest is ready
};

}  // namespace llamaserve
