// What C cannot provoke: every kind of exception becomes a status and a text, and none gets out.
#include "c_api/call.h"

#include <gtest/gtest.h>

#include <new>

namespace attend::c_api {
namespace {

template <class Exception>
attend_status status_of(const Exception& exception) {
  return guarded("attend_f", [&](const Call&) { throw exception; });
}

TEST(CApi, every_exception_has_its_status_and_text) {
  EXPECT_EQ(guarded("attend_f", [](const Call&) {}), ATTEND_OK);
  EXPECT_EQ(status_of(InvalidArgument("f: a")), ATTEND_INVALID_ARGUMENT);
  EXPECT_STREQ(attend_last_error(), "f: a");
  EXPECT_EQ(status_of(Unsupported("f: b")), ATTEND_UNSUPPORTED);
  EXPECT_STREQ(attend_last_error(), "f: b");
  EXPECT_EQ(status_of(OutOfMemory("f: c")), ATTEND_OUT_OF_MEMORY);
  EXPECT_EQ(status_of(FileError("f: d")), ATTEND_FILE_ERROR);
  EXPECT_EQ(status_of(DeviceError("f: e")), ATTEND_DEVICE_ERROR);
  EXPECT_STREQ(attend_last_error(), "f: e");
  EXPECT_EQ(status_of(Interrupted("f: g")), ATTEND_INTERRUPTED);
}

TEST(CApi, other_exceptions_name_the_function) {
  EXPECT_EQ(status_of(std::bad_alloc()), ATTEND_OUT_OF_MEMORY);
  EXPECT_STREQ(attend_last_error(), "attend_f: out of memory");
  EXPECT_EQ(status_of(std::logic_error("g")), ATTEND_INTERNAL_ERROR);
  EXPECT_STREQ(attend_last_error(), "attend_f: g");
  EXPECT_EQ(status_of(42), ATTEND_INTERNAL_ERROR);
  EXPECT_STREQ(attend_last_error(), "attend_f: an exception that is no std::exception");
}

TEST(CApi, names_are_put_together_from_their_parts) {
  EXPECT_EQ(text(Name("q")), "q");
  EXPECT_EQ(text(Name("options") / "attention" / "rotary" / "pairing"),
            "options.attention.rotary.pairing");
}

// A kernel that the caller forces and that declines: arguments are fine, nobody takes them.
TEST(CApi, a_kernel_that_declines_is_unsupported) {
  const std::int64_t shape[] = {1, 1, 1, 1};
  float value = 0;
  attend_view view = ATTEND_INIT(attend_view);
  view.data = &value;
  view.shape = shape;
  view.rank = 4;
  view.device_kind = ATTEND_CUDA;  // memory that no kernel here can read
  attend_view out = view;
  float written = 0;
  out.data = &written;
  EXPECT_EQ(attend_attention(&view, &view, &view, &out, nullptr, nullptr, nullptr),
            ATTEND_UNSUPPORTED)
      << attend_last_error();
}

}  // namespace
}  // namespace attend::c_api
