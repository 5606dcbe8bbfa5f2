#include "llama_log.h"

#include <deque>
#include <mutex>

#include "llama.h"
#include "log.h"

namespace llamaserve {
namespace {

constexpr size_t kept_lines = 32;

struct Journal {
    std::mutex              mutex;
    std::deque<std::string> lines;
    bool                    continues = false;  // whether a CONT fragment belongs to a kept line
};

Journal & journal() {
    static Journal instance;
    return instance;
}

void on_llama_log(ggml_log_level level, const char * text, void *) {
    Journal & kept = journal();
    std::lock_guard<std::mutex> lock(kept.mutex);
    if (level == GGML_LOG_LEVEL_CONT) {
        if (kept.continues && !kept.lines.empty()) {
            kept.lines.back() += text;
        }
        return;
    }
    kept.continues = level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
    if (kept.continues) {
        kept.lines.emplace_back(text);
        if (kept.lines.size() > kept_lines) {
            kept.lines.pop_front();
        }
    }
}

}  // namespace

void capture_llama_log() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_llama_log, nullptr);
        common_log_set_verbosity_thold(-1);  // common/ has a log of its own that writes to stderr
    });
}

std::vector<std::string> take_llama_log() {
    Journal & kept = journal();
    std::lock_guard<std::mutex> lock(kept.mutex);
    std::vector<std::string> lines(kept.lines.begin(), kept.lines.end());
    kept.lines.clear();
    for (std::string & line : lines) {
        while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) {
            line.pop_back();
        }
    }
    return lines;
}

std::string with_llama_log(const std::string & text) {
    std::string message = text;
    std::string previous;
    for (const std::string & line : take_llama_log()) {
        if (line != previous) {
            message += (previous.empty() ? ": " : "; ") + line;
        }
        previous = line;
    }
    return message;
}

}  // namespace llamaserve
