// KvCache: keys and values of tokens seen so far.
#include "fields.h"
#include "layer.h"

#include <attend/kv_cache.h>

namespace attend::python {
namespace {

using namespace nb::literals;

// A property that shows memory of the cache, or None.
template <ConstTensorView (KvCache::*view)() const>
nb::object show_part(nb::handle self) {
  const KvCache& cache = nb::cast<KvCache&>(self);
  const Look looking(&cache, "KvCache");
  const ConstTensorView part = (cache.*view)();
  return part ? show(part, self) : nb::none();
}

nb::dict options_of(const KvCache& self) {
  const Look looking(&self, "KvCache");
  const KvCacheOptions& o = self.options();
  nb::dict dict;
  dict["batch"] = o.batch;
  dict["key_heads"] = o.key_heads;
  dict["d_k"] = o.d_k;
  dict["d_v"] = o.d_v;
  dict["capacity"] = o.capacity;
  dict["page_size"] = o.page_size;
  dict["pages"] = o.pages;
  dict["type"] = chosen(o.type);
  return dict;
}

void append(KvCache& self, nb::handle k, nb::handle v, nb::handle lengths) {
  const Array keys = read(k, {"KvCache.append", "k", Kind::floating});
  const Array values = read(v, {"KvCache.append", "v", Kind::floating});
  const Array n = read(lengths, {"KvCache.append", "lengths", Kind::whole, true});
  const Change alone(&self, "KvCache");
  unlocked([&] { self.append(keys, values, n); });
}

}  // namespace

void bind_kv_cache(nb::module_& m) {
  nb::class_<KvCache>(
      m, "KvCache",
      R"(The KV cache: keys and values of the tokens so far, so that a new token costs one row.

Dense: each sequence has room for `capacity` tokens. Paged (page_size > 0): sequences take pages
from a common pool of `pages` as they grow. Of type 'i8', what is appended is quantised, with one
scale for each token and key head. One thread at a time may use a cache.

>>> cache = attend.KvCache(batch=1, key_heads=2, d_k=4, capacity=16)
>>> cache.append(numpy.ones((1, 2, 3, 4), 'float32'), numpy.ones((1, 2, 3, 4), 'float32'))
>>> cache.length(0)
3
>>> q = numpy.ones((1, 2, 1, 4), 'float32')
>>> attend.attention(q, cache.keys, cache.values, key_lengths=cache.key_lengths).shape
(1, 2, 1, 4)
)")
      .def(
          "__init__",
          [](KvCache* self, const nb::args& places, const nb::kwargs& keywords) {
            const Keywords given(
                places, keywords, "KvCache",
                {"batch", "key_heads", "d_k", "d_v", "capacity", "page_size", "pages", "type"},
                "as in KvCache(key_heads=2, d_k=64, capacity=1024)");
            KvCacheOptions options{.key_heads = given.needed("key_heads"),
                                   .d_k = given.needed("d_k"),
                                   .capacity = given.needed("capacity")};
            options.batch = given.whole("batch", options.batch);
            options.d_v = given.whole("d_v", options.d_v);
            options.page_size = given.whole("page_size", options.page_size);
            options.pages = given.whole("pages", options.pages);
            if (const nb::object type = given.get("type"); type.is_valid())
              options.type = to_dtype(type, "KvCache");
            new (self) KvCache(options);
          },
          "places"_a, "keywords"_a,
          nb::sig("def __init__(self, *, batch: int = 1, key_heads: int, d_k: int, d_v: int = 0, "
                  "capacity: int, page_size: int = 0, pages: int = 0, type: Any = 'f32') -> None"))
      .def_prop_ro("options", options_of, nb::sig("def options(self) -> dict[str, Any]"),
                   "What it was made with.")
      .def(
          "length",
          [](const KvCache& self, std::int64_t b) {
            const Look looking(&self, "KvCache");
            return self.length(b);
          },
          "b"_a, "Tokens that sequence b holds.")
      .def_prop_ro(
          "free_pages",
          [](const KvCache& self) {
            const Look looking(&self, "KvCache");
            return self.free_pages();
          },
          "Of a paged cache.")
      .def("append", append, "k"_a, "v"_a, "lengths"_a = nb::none(),
           nb::sig("def append(self, k: Array, v: Array, lengths: Array | None = None) -> None"),
           R"(Appends keys [batch, key_heads, n, d_k] and values [..., d_v].

With lengths [batch] only the first lengths[b] of sequence b. Raises, with nothing
changed, when there is no room.
)")
      .def(
          "truncate",
          [](KvCache& self, std::int64_t b, std::int64_t length) {
            const Change alone(&self, "KvCache");
            self.truncate(b, length);
          },
          "b"_a, "length"_a, "Drops the tokens of sequence b from `length` on.")
      .def_prop_ro("keys", show_part<&KvCache::keys>, nb::sig("def keys(self) -> Any"),
                   "As attention() takes them: [batch, key_heads, capacity, d_k], or pages.")
      .def_prop_ro("values", show_part<&KvCache::values>, nb::sig("def values(self) -> Any"),
                   "As keys.")
      .def_prop_ro("key_lengths", show_part<&KvCache::key_lengths>,
                   nb::sig("def key_lengths(self) -> Any"), "[batch]")
      .def_prop_ro("block_table", show_part<&KvCache::block_table>,
                   nb::sig("def block_table(self) -> Any"), "Of a paged cache, else None.")
      .def_prop_ro("k_scales", show_part<&KvCache::k_scales>, nb::sig("def k_scales(self) -> Any"),
                   "Of a cache of type 'i8', else None: float32, shaped as keys but for d_k.")
      .def_prop_ro("v_scales", show_part<&KvCache::v_scales>, nb::sig("def v_scales(self) -> Any"),
                   "As k_scales.");
}

}  // namespace attend::python
