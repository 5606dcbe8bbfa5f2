#include "gguf_summary.h"

#include <string_view>
#include <unordered_set>

#include "error.h"
#include "llama_handles.h"
#include "llama_log.h"

namespace llamaserve {
namespace {

GgufValue scalar(const gguf_context * gguf, int64_t key) {
    switch (gguf_get_kv_type(gguf, key)) {
        case GGUF_TYPE_UINT8:   return (uint64_t) gguf_get_val_u8(gguf, key);
        case GGUF_TYPE_INT8:    return (int64_t) gguf_get_val_i8(gguf, key);
        case GGUF_TYPE_UINT16:  return (uint64_t) gguf_get_val_u16(gguf, key);
        case GGUF_TYPE_INT16:   return (int64_t) gguf_get_val_i16(gguf, key);
        case GGUF_TYPE_UINT32:  return (uint64_t) gguf_get_val_u32(gguf, key);
        case GGUF_TYPE_INT32:   return (int64_t) gguf_get_val_i32(gguf, key);
        case GGUF_TYPE_UINT64:  return (uint64_t) gguf_get_val_u64(gguf, key);
        case GGUF_TYPE_INT64:   return (int64_t) gguf_get_val_i64(gguf, key);
        case GGUF_TYPE_FLOAT32: return (double) gguf_get_val_f32(gguf, key);
        case GGUF_TYPE_FLOAT64: return gguf_get_val_f64(gguf, key);
        case GGUF_TYPE_BOOL:    return gguf_get_val_bool(gguf, key);
        case GGUF_TYPE_STRING:  return std::string(gguf_get_val_str(gguf, key));
        default:                return std::string();
    }
}

GgufHandle open_header(const std::string & path) {
    take_llama_log();
    GgufHandle gguf;
    try {
        gguf.reset(gguf_init_from_file(path.c_str(), {/* no_alloc */ true, /* ctx */ nullptr}));
    } catch (const std::exception & error) {
        throw ModelLoadError(path + " is not a readable GGUF file: " + error.what());
    }
    if (!gguf) {
        throw ModelLoadError(with_llama_log(path + " is not a readable GGUF file"));
    }
    return gguf;
}

}  // namespace

GgufSummary read_gguf(const std::string & path) {
    const GgufHandle gguf = open_header(path);
    GgufSummary      summary;
    for (int64_t key = 0; key < gguf_get_n_kv(gguf.get()); key++) {
        const std::string name = gguf_get_key(gguf.get(), key);
        if (gguf_get_kv_type(gguf.get(), key) == GGUF_TYPE_ARRAY) {
            summary.metadata.emplace(name + "[]", (uint64_t) gguf_get_arr_n(gguf.get(), key));
        } else {
            summary.metadata.emplace(name, scalar(gguf.get(), key));
        }
    }
    summary.n_tensors = gguf_get_n_tensors(gguf.get());
    return summary;
}

void check_vocabulary(const std::string & path) {
    const GgufHandle gguf  = open_header(path);
    const int64_t    model = gguf_find_key(gguf.get(), "tokenizer.ggml.model");
    const int64_t    key   = gguf_find_key(gguf.get(), "tokenizer.ggml.tokens");
    if (key < 0 || gguf_get_kv_type(gguf.get(), key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(gguf.get(), key) != GGUF_TYPE_STRING) {
        return;  // llama.cpp has an error of its own for that
    }
    if (model >= 0 && gguf_get_kv_type(gguf.get(), model) == GGUF_TYPE_STRING &&
        std::string_view(gguf_get_val_str(gguf.get(), model)) == "hybriddna") {
        return;  // llama.cpp makes these distinct itself
    }
    const size_t                         count = gguf_get_arr_n(gguf.get(), key);
    std::unordered_set<std::string_view> seen(count);
    for (size_t i = 0; i < count; i++) {
        const std::string_view token = gguf_get_arr_str(gguf.get(), key, i);
        if (!token.empty() && !seen.insert(token).second) {
            throw ModelLoadError(path + " has the token " + std::to_string(i) + " of its vocabulary, '" +
                                 std::string(token) + "', twice");
        }
    }
}

}  // namespace llamaserve
