#include "worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "error.h"

namespace llamaserve {

Bell::Bell() {
    if (pipe(ends_) != 0) {
        throw EngineError(std::string("cannot make a pipe: ") + std::strerror(errno));
    }
    for (const int end : ends_) {
        fcntl(end, F_SETFD, FD_CLOEXEC);  // not for child processes
    }
}

Bell::~Bell() {
    close(ends_[0]);
    close(ends_[1]);
}

void Bell::ring() {
    const char byte = 0;
    while (write(ends_[1], &byte, 1) < 0 && errno == EINTR) {
    }
}

void Bell::wait() {
    char byte;
    while (read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
    }
}

Worker::Worker(std::function<void()> after_job) : after_job_(std::move(after_job)), thread_([this] { run(); }) {}

Worker::~Worker() {
    wait();
    job_ = nullptr;
    job_given_.ring();
    thread_.join();
}

void Worker::submit(std::function<void()> job) {
    job_     = std::move(job);
    is_busy_ = true;
    job_given_.ring();
}

bool Worker::wait() {
    const bool was_busy = is_busy_;
    if (was_busy) {
        job_done_.wait();
        is_busy_ = false;
    }
    return was_busy;
}

void Worker::run() {
    while (true) {
        job_given_.wait();
        if (job_ == nullptr) {
            return;
        }
        job_();
        job_done_.ring();
        after_job_();
    }
}

}  // namespace llamaserve
