// Is the hook of a Context asked inside of what runs as one long task: a loss, the textbook's
// kernels? The hook says yes at a later question than the first, which comes before the task.
#include <attend/attend.h>

#include <gtest/gtest.h>

#include <functional>

namespace attend::test {
namespace {

void ends_inside(const char* kernels, const std::function<void(Context&)>& call) {
  int questions = 0;
  Context context(
      {.threads = 1, .kernels = kernels, .interrupt = [&] { return ++questions == 2; }});
  EXPECT_THROW(call(context), Interrupted);
  EXPECT_EQ(questions, 2) << "not asked again after the answer";
}

TEST(InterruptInside, cross_entropy) {
  const Tensor logits(Shape{200000, 64}), targets(Shape{200000}, DType::i32);
  ends_inside("", [&](Context& context) { cross_entropy(logits, targets, {}, context); });
}

TEST(InterruptInside, mse) {
  const Tensor x(Shape{1 << 25});
  ends_inside("", [&](Context& context) { mse(x, x, context); });
}

TEST(InterruptInside, the_textbook_forward_and_backward) {
  const Tensor q(Shape{1, 1, 64, 64}), k(Shape{1, 1, 1 << 17, 64}), lse(Shape{1, 1, 64});
  Tensor out(q.shape()), dq(q.shape());
  ends_inside("forward:textbook.forward",
              [&](Context& context) { attention(q, k, k, out, {}, {}, context); });
  ends_inside("backward:textbook.backward", [&](Context& context) {
    attention_backward({.q = q, .k = k, .v = k, .out = out, .lse = lse, .dout = out}, {},
                       {.dq = dq}, context);
  });
}

}  // namespace
}  // namespace attend::test
