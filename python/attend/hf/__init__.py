"""attend in Hugging Face Transformers: one line, and a model's attention is attend's.

register()     makes attn_implementation="attend" known to Transformers
check(model)   says which modules of a model will come to attend, which will not, and why
capture(model, ...), edit(model, ...)   what chosen heads do while a model runs, and heads that do something else
head_importance(model, inputs)          how much the loss depends on each head
view(model, tokenizer, text)            a page that shows every head

>>> attend.hf.register()
>>> model = AutoModel.from_pretrained("...", attn_implementation="attend")    # or, later:
>>> model.set_attn_implementation("attend")
>>> print(attend.hf.check(model))

Importing this changes nothing in Transformers. What a model asks for and attend cannot do is refused in words, and attend
falls back to nothing. Code of a model that never asks, and computes attention by itself, goes on doing so: it is named in a
warning where the model is made, loaded or set to attend, and refused where it adds its mask to scores; check(model) says which
modules do.
"""
from .blocks import capture, edit, head_importance
from .registration import NAME, register
from .reports import Report, check
from .viewing import view

__all__ = ["NAME", "Report", "capture", "check", "edit", "head_importance", "register", "view"]
