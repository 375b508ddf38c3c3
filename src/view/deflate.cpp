// Deflate by zlib.
#include "view/blobs.h"

#include <zlib.h>

#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>

namespace attend::view {

std::string deflated(std::string_view bytes) {
  constexpr int kRaw = -15;   // no header, a window of 32 KiB
  constexpr int kMemory = 8;  // zlib's default
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kRaw, kMemory, Z_DEFAULT_STRATEGY) !=
      Z_OK)
    throw std::bad_alloc();  // the one way in which these arguments can fail
  const std::unique_ptr<z_stream, decltype(&deflateEnd)> ended(&stream, &deflateEnd);
  std::string out(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  std::size_t room = out.size();
  // zlib counts in 32 bits, so both sides go through it in parts.
  constexpr std::size_t kPart = std::size_t{1} << 30;
  int status = Z_OK;
  while (status == Z_OK) {
    const std::size_t in = std::min(bytes.size(), kPart), space = std::min(room, kPart);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(in);
    stream.avail_out = static_cast<uInt>(space);
    status = deflate(&stream, in == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    bytes.remove_prefix(in - stream.avail_in);
    room -= space - stream.avail_out;
  }
  out.resize(out.size() - room);
  return out;
}

}  // namespace attend::view
