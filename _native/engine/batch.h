// The token arrays handed to llama_decode: allocated once, refilled for every call (S14). Worker thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "llama.h"

namespace llamaserve {

class Batch {
public:
    explicit Batch(size_t capacity) : token_(capacity), pos_(capacity), seq_(capacity), n_seq_(capacity, 1),
                                      seq_ptr_(capacity), output_(capacity) {
        for (size_t i = 0; i < capacity; i++) {
            seq_ptr_[i] = &seq_[i];
        }
    }

    Batch(const Batch &)             = delete;  // the arrays point into each other
    Batch & operator=(const Batch &) = delete;

    size_t size() const { return size_; }
    void   clear() { size_ = 0; }

    // The caller keeps the size within the capacity.
    void add(llama_token token, llama_pos pos, llama_seq_id seq_id, bool output) {
        token_[size_]  = token;
        pos_[size_]    = pos;
        seq_[size_]    = seq_id;
        output_[size_] = output;
        size_++;
    }

    // Points into this object; valid until the next change.
    llama_batch view() {
        return llama_batch{(int32_t) size_, token_.data(), nullptr,          pos_.data(),
                           n_seq_.data(),   seq_ptr_.data(), output_.data()};
    }

private:
    std::vector<llama_token>    token_;
    std::vector<llama_pos>      pos_;
    std::vector<llama_seq_id>   seq_;
    std::vector<int32_t>        n_seq_;
    std::vector<llama_seq_id *> seq_ptr_;
    std::vector<int8_t>         output_;
    size_t                      size_ = 0;
};

}  // namespace llamaserve
