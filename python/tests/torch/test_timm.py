"""Models of timm on attend, as they are: of what calls PyTorch's function by itself, the package that is tested."""
import attend.torch
import pytest
import torch
from support import error

timm = pytest.importorskip("timm", reason="timm is not installed: it is for this test alone")

SIZES = {"img_size": 16, "num_classes": 5}
MODELS = {
    "vit": lambda: timm.models.vision_transformer.VisionTransformer(**SIZES, patch_size=4, embed_dim=32, depth=2, num_heads=4),
    "swin": lambda: timm.models.swin_transformer.SwinTransformer(  # windows that are shifted: a position bias, and a mask
        **SIZES, patch_size=2, window_size=4, embed_dim=16, depths=(2,), num_heads=(2,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name):
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.randn(2, 3, 16, 16)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = True  # in Swin timm calls PyTorch's function only if it is asked to
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.2)
    results = []
    for on_attend in (False, True):
        model.zero_grad()
        if on_attend:
            with attend.torch.sdpa(model, strict=True) as calls:
                out = model(x)
        else:
            out = model(x)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    attentions = [key for key, module in model.named_modules() if type(module).__name__.endswith("Attention")]
    assert [call.module for call in calls.counts] == attentions and len(attentions) == calls.on_attend == 2
    assert max(error(a, b.double()) for a, b in zip(*results)) < 1e-5


def test_a_head_is_captured_and_ablated():
    model, x = MODELS["vit"]().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad(), attend.torch.sdpa(model):
        with attend.torch.capture(model, layers="blocks.1.attn", heads=2, what=("weights", "qkv")) as run:
            plain = model(x)
        with attend.torch.edit(model, {("blocks.1.attn", 2): attend.zero}):
            assert not torch.equal(model(x), plain)
    found = run["blocks.1.attn"]
    wanted = (found.q @ found.k.mT / 8**0.5).softmax(-1)
    assert found.weights.shape == (2, 1, 17, 17) and error(found.weights, wanted.double()) < 1e-5
    assert attend.torch.output_projection(model, found.layer) is model.blocks[1].attn.proj
