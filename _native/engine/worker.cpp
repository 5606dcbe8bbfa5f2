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

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
    wait_idle();
    job_ = nullptr;
    job_given_.ring();
    thread_.join();
}

void Worker::submit(std::function<void()> job) {
    job_     = std::move(job);
    is_busy_ = true;
    job_given_.ring();
}

void Worker::wait_idle() {
    if (is_busy_) {
        job_done_.wait();
        is_busy_ = false;
    }
}

void Worker::run() {
    while (true) {
        job_given_.wait();
        if (job_ == nullptr) {
            return;
        }
        job_();
        job_done_.ring();
    }
}

}  // namespace llamaserve
