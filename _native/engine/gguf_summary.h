// The header of a GGUF file: metadata and tensor count, without the weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace llamaserve {

using GgufValue = std::variant<std::string, int64_t, uint64_t, double, bool>;

struct GgufSummary {
    std::map<std::string, GgufValue> metadata;  // an array "key" is left out, its length stands under "key[]"
    int64_t                          n_tensors = 0;
};

// Throws ModelLoadError when the file is not a GGUF.
GgufSummary read_gguf(const std::string & path);

// Throws ModelLoadError for a vocabulary that has a token twice, on which llama.cpp aborts the process.
void check_vocabulary(const std::string & path);

}  // namespace llamaserve
