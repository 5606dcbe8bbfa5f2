// The exceptions of the engine. The bindings turn each into its twin of llamaserve/errors.py.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace llamaserve {

// The caller broke the contract of a call, or the engine cannot go on.
struct EngineError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The model file or the context cannot be used.
struct ModelLoadError : EngineError {
    using EngineError::EngineError;
};

// The context was lost to an exception inside llama.cpp, or the engine was shut down.
struct EngineDownError : EngineError {
    using EngineError::EngineError;
};

// A sampling parameter that leaves nothing to draw.
struct BadSamplerError : std::runtime_error {
    BadSamplerError(std::string param, std::string value, std::string limit)
        : std::runtime_error(param + " is " + value + ": it must be " + limit), param(std::move(param)),
          value(std::move(value)), limit(std::move(limit)) {}

    std::string param;
    std::string value;
    std::string limit;
};

// What a restriction allows next, the request's other parameters forbid.
struct NoTokenError : std::runtime_error {
    NoTokenError() : std::runtime_error("of the tokens that the restriction allows, the request forbids every one") {}
};

// A text that cannot be tokenised safely.
struct BadTextError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A token id outside the vocabulary.
struct BadTokenError : std::runtime_error {
    BadTokenError(int64_t token, int32_t n_vocab)
        : std::runtime_error("token " + std::to_string(token) + " is outside the vocabulary"),
          token(token), n_vocab(n_vocab) {}

    int64_t token;
    int32_t n_vocab;
};

// A chat template that does not parse, or cannot render these messages.
struct TemplateError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace llamaserve
