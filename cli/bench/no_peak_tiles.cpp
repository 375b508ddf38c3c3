// In place of peak_tiles.cpp on processors that are not x86-64.
#include "peak_tiles.h"

namespace attend::cli {

const TileLoop* tile_loop(DType) { return nullptr; }

}  // namespace attend::cli
