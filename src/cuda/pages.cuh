// Tiles of keys and values that lie on pages: the copy engine brings them piece by piece. A piece
// lies on one page, so a tile has the numbers that it has in a dense tensor, in the same places.
#pragma once

#include "pipeline.cuh"

namespace attend::cuda {

// A tile of keys from `first` on, of the sequence in this row of the table:
// body(row of the tile, page, row of the page). Keys from `end` on are on no page that is looked
// at: for page -1 the copy engine writes zeros.
template <class Body>
__device__ __forceinline__ void for_each_piece(const KeyPages& pages, int sequence, int first,
                                               int keys, int end, const Body& body) {
  const int* page = pages.table + static_cast<long long>(sequence) * pages.width;
  page += first / pages.size;
  int in_page = first % pages.size;
#pragma unroll 1
  for (int row = 0; row < keys; row += pages.piece) {
    body(row, first + row < end ? *page : -1, in_page);
    in_page += pages.piece;
    if (in_page < pages.size) continue;
    in_page = 0;
    ++page;
  }
}

// Into a place of a ring, when it is empty.
template <class T, int kKeys, int kD, int kStages, class Note>
__device__ __forceinline__ void load_from_pages(Ring<SharedTile<T, kKeys, kD>, kStages, Note>& ring,
                                                Place<kStages>& place, const TensorMap& map,
                                                const KeyPages& pages, int sequence, int first,
                                                int end, int head) {
  ring.wait_until_empty(place);
  Barrier& full = ring.full[place.stage];
  full.arrive_and_expect(SharedTile<T, kKeys, kD>::kBytes);
  for_each_piece(pages, sequence, first, kKeys, end, [&](int row, int page, int in_page) {
    load_rows(ring.tiles[place.stage], row, map, in_page, head, page, full);
  });
  place.advance();
}

}  // namespace attend::cuda
