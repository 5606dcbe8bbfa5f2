// Keeps llama.cpp's warnings and errors for our own messages instead of writing them to stderr. Any thread.
#pragma once

#include <string>
#include <vector>

namespace llamaserve {

// Route the logs of llama.cpp, ggml and common/ here; the first call counts.
void capture_llama_log();

// The warnings and errors since the last call, oldest first, at most 32.
std::vector<std::string> take_llama_log();

// `text` with the errors llama.cpp logged since the last take, for an exception's message.
std::string with_llama_log(const std::string & text);

}  // namespace llamaserve
