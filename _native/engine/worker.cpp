#include "worker.h"

namespace llamaserve {

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    has_job_.notify_one();
    thread_.join();
}

void Worker::submit(std::function<void()> job) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        job_ = std::move(job);
    }
    has_job_.notify_one();
}

void Worker::wait_idle() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_idle_.wait(lock, [this] { return job_ == nullptr; });
}

void Worker::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        has_job_.wait(lock, [this] { return stopping_ || job_ != nullptr; });
        if (job_ == nullptr) {
            return;
        }
        lock.unlock();
        job_();
        lock.lock();
        job_ = nullptr;
        is_idle_.notify_all();
    }
}

}  // namespace llamaserve
