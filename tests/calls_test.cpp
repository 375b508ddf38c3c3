// Calls with {} in them mean one thing: {} is the options, or the outputs, never a tensor. This
// file need not run, it must compile; what runs shows which function was meant.
#include <attend/attend.h>

#include "support/thrown_by.h"

#include <gtest/gtest.h>

namespace attend {
namespace {

using test::thrown_by;

struct Calls : testing::Test {
  Tensor x{Shape{1, 3, 4}};
  Tensor q{Shape{1, 1, 3, 4}}, lse{Shape{1, 1, 3}}, dq{Shape{1, 1, 3, 4}}, out{Shape{1, 1, 3, 4}};
  Context context{{.threads = 1}};
};

TEST_F(Calls, attention) {
  EXPECT_EQ(attention(q, q, q, {}).shape(), q.shape());
  EXPECT_EQ(attention(q, q, q, {}, context).shape(), q.shape());
  EXPECT_EQ(attention(q, q, q, {.causal = true}).shape(), q.shape());
  attention(q, q, q, out, {}, {});
  attention(q, q, q, out, {}, {.lse = lse}, context);
  float* const data = q.data<float>();
  attention({data, {1, 1, 3, 4}}, q, q, {out.data<float>(), {1, 1, 3, 4}});
  const BackwardInputs inputs{.q = q, .k = q, .v = q, .out = out, .lse = lse, .dout = q};
  EXPECT_EQ(attention_backward(inputs, {}).dq.shape(), q.shape());
  EXPECT_EQ(attention_backward(inputs, {}, context).dq.shape(), q.shape());
  attention_backward(inputs, {}, {.dq = dq});
  EXPECT_EQ(thrown_by([&] { attention_backward(inputs, {}, {}); }),
            "InvalidArgument: attention_backward: no gradient is asked for; dq, dk, dv, dbias, "
            "dsinks or dalibi is needed");
}

// Tensors that are made in its place live as long as the struct does.
TEST_F(Calls, backward_inputs_keep_what_is_made_in_them) {
  const auto ones = [](const Shape& shape) {
    Tensor t(shape);
    for (std::int64_t n = 0; n < t.count(); ++n) t.data<float>()[n] = 1;
    return t;
  };
  const Tensor v = ones(q.shape()), dout = ones(q.shape());
  attention(q, q, v, out, {}, {.lse = lse});
  const BackwardInputs kept{
      .q = q, .k = q, .v = ones(q.shape()), .out = out, .lse = lse, .dout = ones(q.shape())};
  const Tensor others[] = {Tensor(q.shape()), Tensor(q.shape())};  // zeros, where they had been
  const BackwardInputs named{.q = q, .k = q, .v = v, .out = out, .lse = lse, .dout = dout};
  const Tensor found = attention_backward(kept, {}).dv, wanted = attention_backward(named, {}).dv;
  for (std::int64_t n = 0; n < wanted.count(); ++n)
    EXPECT_EQ(found.data<float>()[n], wanted.data<float>()[n]);
  EXPECT_NE(found.data<float>()[0], others[0].data<float>()[0]);
}

TEST_F(Calls, layers) {
  const MultiHeadAttention layer({.model_dim = 4, .heads = 2});
  for (const Tensor& y :
       {layer.forward(x), layer.forward(x, {}), layer.forward(x, {}, {}),
        layer.forward(x, {}, context), layer.forward(x, {}, {}, context),
        layer.forward(x, x, x, {}), layer.forward(x, x, x, {}, {}),
        layer.forward(x, x, x, {}, context), layer.forward(x, x, x, {}, {}, context),
        layer.forward_train(x, {}).first, layer.forward_train(x, {}, context).first})
    EXPECT_EQ(y.shape(), x.shape());
  Tensor into({1, 3, 4});
  layer.forward_into(x, into, {}, {});
  layer.forward_into(x, into, {}, context);
  layer.forward_into(x, x, x, into, {}, {});
  layer.forward_into(x, x, x, into, {}, context);
  layer.trace(x, {}, context);
  layer.inspect(x, {}, {}, context);
  layer.heads(x, {}, context);

  const AttentionBlock block({.attention = {.model_dim = 4, .heads = 2}});
  for (const Tensor& y :
       {block.forward(x, {}), block.forward(x, {}, context), block.forward_train(x, {}).first,
        block.forward_train(x).first, block.forward_train(x, {.causal = true}, context).first})
    EXPECT_EQ(y.shape(), x.shape());
  EXPECT_FALSE(block.trace(x, {}).steps.empty());

  const Linear linear({.in = 4, .out = 4});
  EXPECT_EQ(linear.backward(x, x, context).dx.shape(), x.shape());
  EXPECT_NE(thrown_by([&] { linear.backward(x, {}); }), "nothing") << "{} is Saved, of nothing";
}

TEST_F(Calls, losses) {
  EXPECT_EQ(mse(x, x, {}).value, 0);
  EXPECT_EQ(mse(x, x, context).value, 0);
  EXPECT_EQ(mse(x, x, {}, context).value, 0);
  EXPECT_EQ(mse(x, x, {.gradient_scale = 2}).value, 0);
}

TEST_F(Calls, a_context_or_where_it_is) {
  const Where here = context;
  EXPECT_EQ(&here.context(), &context);
  EXPECT_EQ(here.queue(), nullptr);
  Context& same = here;
  EXPECT_EQ(&same, &context);
  EXPECT_EQ(attention(q, q, q, {}, here).shape(), q.shape());
}

}  // namespace
}  // namespace attend
