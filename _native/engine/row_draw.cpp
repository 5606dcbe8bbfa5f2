#include "row_draw.h"

#include "error.h"

namespace llamaserve {
namespace {

constexpr int64_t least_parallel_logits = 200'000;  // about 40 us of drawing: below, waking the others costs more

void compute_draw(RowDraw & draw, int32_t n_vocab) {
    try {
        if (draw.sampler != nullptr) {
            draw.token = draw.sampler->draw(draw.logits, draw.mask);
        }
        if (draw.n_top >= 0) {
            draw.score = LogProbs(draw.logits, n_vocab).score(draw.token, draw.n_top);
        }
    } catch (const NoTokenError & error) {
        draw.error   = RowError::no_token;
        draw.message = error.what();
    } catch (const std::exception & error) {
        draw.error   = RowError::decode;
        draw.message = std::string("no token could be drawn: ") + error.what();
    }
}

}  // namespace

// The threads are those that llama.cpp's graph ran on, still awake, so a parallel region costs a few microseconds.
void compute_draws(std::vector<RowDraw> & draws, int32_t n_vocab, int32_t n_threads) {
    const int64_t n_logits = (int64_t) draws.size() * n_vocab;
#ifdef _OPENMP
    if (draws.size() > 1 && n_threads > 1 && n_logits >= least_parallel_logits) {
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
        for (size_t i = 0; i < draws.size(); i++) {
            compute_draw(draws[i], n_vocab);
        }
        return;
    }
#endif
    (void) n_logits;
    (void) n_threads;
    for (RowDraw & draw : draws) {
        compute_draw(draw, n_vocab);
    }
}

}  // namespace llamaserve
