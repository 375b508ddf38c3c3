# What the stub of the compiled module imports, for nanobind's stubgen.
attend\._attend\.__prefix__:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    from ._types import (
        Array as Array,
        ArrayT as ArrayT,
        BlockGradients as BlockGradients,
        BlocksLike as BlocksLike,
        DropoutLike as DropoutLike,
        HeadWeights as HeadWeights,
        LayerGradients as LayerGradients,
        LayerHeads as LayerHeads,
        Loss as Loss,
        MultiHeadAttentionGradients as MultiHeadAttentionGradients,
        RotaryLike as RotaryLike,
        Statistics as Statistics,
        TraceStep as TraceStep,
        WindowLike as WindowLike,
    )

