"""Models of the `transformers` package, from their configurations with random weights.

Dropout keeps its kernels and random numbers but never drops (see `layers.NEVER`), so that eager is a reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from scripts.bench.registry import Draw, Program, Setting, training, workload
from scripts.bench.workloads.layers import NEVER

NEEDS = ("transformers",)
FACTS: dict[str, Any] = {"suite": "HuggingFace", "source": "transformers", "needs": NEEDS, "paper": True}


def make(name: str, setting: Setting, train: bool, **sizes: Any) -> nn.Module:
    """A model by class name; `sizes` override its default configuration."""
    import transformers

    cls = getattr(transformers, name)
    config = cls.config_class(**sizes)
    for attribute, value in list(vars(config).items()):
        if "drop" in attribute and isinstance(value, float) and not attribute.endswith("layerdrop"):
            setattr(config, attribute, NEVER)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return setting.place(cls(config), training=train)


def outputs_of(model: nn.Module, *names: str) -> Callable[..., tuple[Tensor, ...]]:
    """The model as a function of positional tensors that returns its output tensors."""

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        result = model(**dict(zip(names, inputs, strict=True)))
        return tuple(value for value in result.values() if isinstance(value, Tensor))

    return function


def loss_of(model: nn.Module, *names: str) -> Callable[..., Tensor]:
    def function(*inputs: Tensor) -> Tensor:
        return model(**dict(zip(names, inputs, strict=True))).loss

    return function


def tokens(setting: Setting, vocabulary: int, length: int, copies: int = 1) -> Callable[[Draw], tuple[Tensor, ...]]:
    """Token ids, and labels or decoder ids of the same shape."""
    return lambda draw: tuple(draw.integers(vocabulary, setting.batch, length, low=3) for _ in range(copies))


def spans(setting: Setting, vocabulary: int, length: int) -> Callable[[Draw], tuple[Tensor, ...]]:
    """Token ids with the start and end positions of an answer."""
    return lambda draw: (
        draw.integers(vocabulary, setting.batch, length, low=3),
        draw.integers(length, setting.batch),
        draw.integers(length, setting.batch),
    )


def xlnet(setting: Setting, train: bool) -> tuple[nn.Module, int, int]:
    sizes = setting.pick({}, {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64})
    model = make("XLNetLMHeadModel", setting, train, **sizes)
    return model, setting.pick(32000, 100), setting.pick(512, 16)


XLNET = {**FACTS, "title": "XLNetLMHeadModel", "structure": "positions and masks made on the CPU in every forward"}


@workload("XLNET-I", mode="inference", batch=1, precision="bf16", **XLNET)
def xlnet_inference(setting: Setting) -> Program:
    model, vocabulary, length = xlnet(setting, train=False)
    return Program(outputs_of(model, "input_ids"), tokens(setting, vocabulary, length))


@workload("XLNET-T", mode="training", batch=8, precision="amp", **XLNET)
def xlnet_training(setting: Setting) -> Program:
    model, vocabulary, length = xlnet(setting, train=True)
    function = loss_of(model, "input_ids", "labels")
    return training(model, tokens(setting, vocabulary, length, 2), setting, function)


def mt5(setting: Setting, train: bool) -> tuple[nn.Module, int, int]:
    small = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    model = make("MT5ForConditionalGeneration", setting, train, **setting.pick({}, small))
    return model, setting.pick(250112, 100), setting.pick(128, 16)


MT5 = {
    **FACTS,
    "title": "MT5ForConditionalGeneration",
    "structure": "encoder and decoder, position buckets, a large vocabulary",
}


@workload("MTCG-I", mode="inference", batch=16, precision="bf16", **MT5)
def mt5_inference(setting: Setting) -> Program:
    model, vocabulary, length = mt5(setting, train=False)
    function = outputs_of(model, "input_ids", "decoder_input_ids")
    return Program(function, tokens(setting, vocabulary, length, 2))


@workload("MTCG-T", mode="training", batch=16, precision="amp", **MT5)
def mt5_training(setting: Setting) -> Program:
    model, vocabulary, length = mt5(setting, train=True)
    return training(model, tokens(setting, vocabulary, length, 2), setting, loss_of(model, "input_ids", "labels"))


@workload(
    "MBERT",
    title="MobileBertForQuestionAnswering",
    mode="inference",
    batch=128,
    precision="bf16",
    structure="24 narrow layers, many small kernels",
    **FACTS,
)
def mobilebert(setting: Setting) -> Program:
    small = {
        "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
        "embedding_size": 16, "intra_bottleneck_size": 16, "max_position_embeddings": 32, "num_feedforward_networks": 2,
    }  # fmt: skip
    model = make("MobileBertForQuestionAnswering", setting, False, **setting.pick({}, small))
    function = outputs_of(model, "input_ids", "start_positions", "end_positions")
    return Program(function, spans(setting, setting.pick(30522, 100), setting.pick(128, 16)))


@workload(
    "DBV2",
    title="DebertaV2ForQuestionAnswering",
    mode="inference",
    batch=1,
    precision="bf16",
    structure="24 wide layers at batch 1",
    **FACTS,
)
def deberta_v2(setting: Setting) -> Program:
    small = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    model = make("DebertaV2ForQuestionAnswering", setting, False, **setting.pick({}, small))
    function = outputs_of(model, "input_ids", "start_positions", "end_positions")
    return Program(function, spans(setting, setting.pick(128100, 100), setting.pick(512, 16)))


@workload(
    "BSCG",
    title="BlenderbotSmallForConditionalGeneration",
    mode="training",
    batch=64,
    precision="amp",
    structure="encoder and decoder, tied embeddings",
    **FACTS,
)
def blenderbot(setting: Setting) -> Program:
    small = {
        "vocab_size": 100, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "max_position_embeddings": 32,
    }  # fmt: skip
    model = make("BlenderbotSmallForConditionalGeneration", setting, True, **setting.pick({}, small))
    function = loss_of(model, "input_ids", "labels")
    return training(model, tokens(setting, setting.pick(50265, 100), setting.pick(128, 16), 2), setting, function)


@workload(
    "DGPT2",
    title="DistillGPT2",
    mode="training",
    batch=16,
    precision="amp",
    structure="six decoder layers, a vocabulary-sized loss",
    **FACTS,
)
def distilled_gpt2(setting: Setting) -> Program:
    small = {"vocab_size": 100, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 4}
    sizes = setting.pick({"n_layer": 6}, {**small, "bos_token_id": 0, "eos_token_id": 0})
    model = make("GPT2LMHeadModel", setting, True, **sizes)
    fresh = tokens(setting, setting.pick(50257, 100), setting.pick(512, 16), 2)
    return training(model, fresh, setting, loss_of(model, "input_ids", "labels"))


@workload(
    "DMLM",
    title="DebertaForMaskedLM",
    mode="training",
    batch=8,
    precision="bf16",
    # Its attention mask overflows under autocast: half-precision scores, the smallest float32.
    structure="disentangled attention, twelve layers",
    **FACTS,
)
def deberta(setting: Setting) -> Program:
    small = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    model = make("DebertaForMaskedLM", setting, True, **setting.pick({}, small))
    fresh = tokens(setting, setting.pick(50265, 100), setting.pick(512, 16), 2)
    return training(model, fresh, setting, loss_of(model, "input_ids", "labels"))


@workload(
    "WHISPER",
    title="WhisperForConditionalGeneration (small)",
    mode="inference",
    batch=4,
    precision="bf16",
    structure="a long audio encoder and a short decoder",
    **{**FACTS, "paper": False, "suite": "extra"},
)
def whisper(setting: Setting) -> Program:
    small = {
        "vocab_size": 100, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 16,
        "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }  # fmt: skip
    full = {
        "d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    }  # fmt: skip
    model = make("WhisperForConditionalGeneration", setting, False, **setting.pick(full, small))
    frames, length = setting.pick(3000, 32), setting.pick(32, 8)
    vocabulary = setting.pick(51865, 100)

    def fresh(draw: Draw) -> tuple[Tensor, ...]:
        return draw.normal(setting.batch, 80, frames), draw.integers(vocabulary, setting.batch, length)

    return Program(outputs_of(model, "input_features", "decoder_input_ids"), fresh)


@workload(
    "BERT-MLM",
    title="BertForMaskedLM (base)",
    mode="training",
    batch=4,
    precision="amp",
    structure="a short training step that stock graphs leave host-bound",
    **{**FACTS, "paper": False, "suite": "extra"},
)
def bert_base(setting: Setting) -> Program:
    small = {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    model = make("BertForMaskedLM", setting, True, **setting.pick({}, small))
    fresh = tokens(setting, setting.pick(30522, 100), setting.pick(128, 16), 2)
    return training(model, fresh, setting, loss_of(model, "input_ids", "labels"))
