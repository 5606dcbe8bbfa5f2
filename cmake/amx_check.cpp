// Configures AMX tiles the way ggml does, from a value built in place. Some compilers (seen with GCC 12 at -O3) pass
// only the first bytes of it to the processor, which then traps on the first tile.
#include <immintrin.h>

#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

struct alignas(64) TileConfig {
    unsigned char  palette_id;
    unsigned char  start_row;
    unsigned char  reserved[14];
    unsigned short colsb[16];
    unsigned char  rows[16];
};

static inline void configure_tiles() {
    TileConfig config = {};
    config.palette_id = 1;
    config.rows[4]    = 16;
    config.colsb[4]   = 64;
    _tile_loadconfig(&config);
}

int main() {
    constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long tile_data          = 18;      // XFEATURE_XTILEDATA
    if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) {
        return 0;  // no AMX here: ggml finds out by itself
    }
    configure_tiles();
    _tile_zero(4);
    _tile_release();
    return 0;
}
#else
int main() { return 0; }
#endif
