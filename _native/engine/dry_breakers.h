// Which token sequences end a repetition for the DRY sampler. Any thread.
//
// llama.cpp looks through the whole vocabulary for each breaker of each request. Here the texts of the tokens are kept
// side by side, and what was found for a breaker is kept too, so that opening a sequence costs little. Nobody waits for
// another's search: it takes milliseconds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "llama.h"

namespace llamaserve {

class Model;

class DryBreakers {
public:
    using Found = std::vector<std::vector<llama_token>>;

    explicit DryBreakers(const Model & model) : model_(model) {}

    // Every way that breakers of at most 40 bytes can come: a token that has one inside, or one that ends with its
    // beginning and then, up to 20 tokens, the rest. Throws BadSamplerError where there are more than a request can have:
    // llama.cpp copies them for each.
    Found find(const std::vector<std::string> & texts) const;

private:
    struct Kept {
        std::shared_ptr<const Found> found;
        uint64_t                     used_at;  // on a clock that ticks with each use
    };

    std::shared_ptr<const Found> find_one(const std::string & text) const;
    std::shared_ptr<const Found> search(const std::string & text) const;
    void                         read_vocabulary() const;
    void                         make_room(size_t n_sequences) const;

    const Model &               model_;
    mutable std::once_flag      is_read_;
    mutable std::string         texts_;  // of all tokens, one behind the other
    mutable std::vector<size_t> ends_;   // of each token's text

    mutable std::mutex                  mutex_;  // of what follows
    mutable std::map<std::string, Kept> kept_;
    mutable size_t                      n_kept_ = 0;  // sequences in all of them
    mutable uint64_t                    clock_  = 0;
};

}  // namespace llamaserve
