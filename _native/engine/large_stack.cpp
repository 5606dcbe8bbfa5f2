#include "large_stack.h"

#include <pthread.h>

#include <cstring>
#include <exception>
#include <string>

#include "error.h"

namespace llamaserve {
namespace {

struct Job {
    const std::function<void()> & work;
    std::exception_ptr            failure;
};

void * run_job(void * data) {
    auto * job = static_cast<Job *>(data);
    try {
        job->work();
    } catch (...) {
        job->failure = std::current_exception();
    }
    return nullptr;
}

}  // namespace

void run_on_large_stack(size_t stack_bytes, const std::function<void()> & work) {
    Job            job{work, nullptr};
    pthread_attr_t attributes;
    pthread_t      thread;
    pthread_attr_init(&attributes);
    int code = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (code == 0) {
        code = pthread_create(&thread, &attributes, run_job, &job);
    }
    pthread_attr_destroy(&attributes);
    if (code != 0) {
        throw EngineError("cannot start a thread with a stack of " + std::to_string(stack_bytes) + " bytes: " +
                          std::strerror(code));
    }
    pthread_join(thread, nullptr);
    if (job.failure) {
        std::rethrow_exception(job.failure);
    }
}

}  // namespace llamaserve
