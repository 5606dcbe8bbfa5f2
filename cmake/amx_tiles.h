// Put before every file of ggml's CPU backend where the compiler fails cmake/amx_check.cpp: says that ldtilecfg reads all
// 64 bytes of a tile configuration, so that none of their stores are dropped.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__)
#include <immintrin.h>

struct llamaserve_tile_config {
    unsigned char bytes[64];
};

#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const struct llamaserve_tile_config *) (config)))
#endif
