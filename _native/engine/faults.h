// Failures on demand, for tests: what llama.cpp answers only when memory runs out or a device is lost.
#pragma once

#include <deque>

namespace llamaserve {

struct Faults {
    std::deque<int> decode_codes;         // the next llama_decode calls return these and compute nothing; 0 = as usual
    int             n_failing_rewinds = 0;  // so many of the next rewinds find that the memory cannot forget
    int             n_failing_returns = 0;  // so many of the next gathered sequences find no room for their cells

    // The code the next call shall return; 0 = call llama.cpp.
    int next_decode_code() {
        if (decode_codes.empty()) {
            return 0;
        }
        const int code = decode_codes.front();
        decode_codes.pop_front();
        return code;
    }
    bool next_rewind_fails() { return n_failing_rewinds > 0 && n_failing_rewinds-- > 0; }
    bool next_return_fails() { return n_failing_returns > 0 && n_failing_returns-- > 0; }
};

}  // namespace llamaserve
