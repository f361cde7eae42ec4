"""A tiny model and a few samples for each head of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tests.vision  # noqa: F401  # transformers imports torchvision where it finds it
from tests.integrations.language import SMALL_BERT, bert, llama

# isort: split
import transformers
from transformers import BertConfig

NUM_SAMPLES = 12

Items = list[dict[str, Any]]


class Head(NamedTuple):
    model: Callable[[], Any]
    items: Callable[[], Items]
    num_targets: Callable[[dict[str, Any]], int] = lambda item: 1
    """Over how many places the model averages the loss of a sample."""


def seeded(make: Callable[[], Any]) -> Callable[[], Any]:
    def model() -> Any:
        torch.manual_seed(0)
        return make()

    return model


def random_ints(low: int, high: int, *shape: int) -> Tensor:
    """The same in every call: samples differ by their rows."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


def rows(columns: dict[str, Tensor]) -> Items:
    return [{name: column[i] for name, column in columns.items()} for i in range(NUM_SAMPLES)]


def texts(**columns: Tensor) -> Items:
    """Sequences of 8 tokens, half of them easy, with further columns."""
    ids = random_ints(3, 32, NUM_SAMPLES, 8)
    ids[::2] = 5
    return rows({"input_ids": ids, **columns})


def with_gaps(labels: Tensor, num_gaps: Tensor) -> Tensor:
    """Ignore the first labels of each sample, in each sample another number of them."""
    places = torch.arange(labels.shape[1])
    return labels.masked_fill(places < num_gaps[:, None], -100)


def sequences_to_continue() -> Items:
    ids = torch.stack([item["input_ids"] for item in texts()])
    return texts(labels=with_gaps(ids, random_ints(0, 6, NUM_SAMPLES)))


def tokens_to_name(num_labels: int) -> Items:
    gaps = random_ints(0, 6, NUM_SAMPLES)
    return texts(labels=with_gaps(random_ints(0, num_labels, NUM_SAMPLES, 8), gaps))


def choices() -> Items:
    ids = random_ints(3, 32, NUM_SAMPLES, 3, 6)
    return rows({"input_ids": ids, "labels": random_ints(0, 3, NUM_SAMPLES)})


def images(**columns: Tensor) -> Items:
    pixels = torch.randn(NUM_SAMPLES, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return rows({"pixel_values": pixels, **columns})


def maps(num_labels: int) -> Tensor:
    labels = random_ints(0, num_labels, NUM_SAMPLES, 16, 16)
    return labels.masked_fill(random_ints(0, 4, NUM_SAMPLES, 16, 16) == 0, 255)


def speech() -> Items:
    """Recordings of several lengths, padded, with one to four characters each."""
    waves = torch.randn(NUM_SAMPLES, 400, generator=torch.Generator().manual_seed(1))
    is_sound = torch.arange(400) < random_ints(200, 400, NUM_SAMPLES)[:, None]
    is_padding = torch.arange(4) > random_ints(0, 4, NUM_SAMPLES)[:, None]
    labels = random_ints(1, 8, NUM_SAMPLES, 4).masked_fill(is_padding, -100)
    columns = {
        "input_values": waves * is_sound,
        "attention_mask": is_sound.long(),
        "labels": labels,
    }
    return rows(columns)


def next_targets(item: dict[str, Any]) -> int:
    return int((item["labels"][1:] != -100).sum())


def targets(item: dict[str, Any]) -> int:
    return int((item["labels"] != -100).sum())


def berts(kind: str, **settings: Any) -> Callable[[], Any]:
    name, config = f"BertFor{kind}", {**SMALL_BERT, **settings}
    return seeded(lambda: getattr(transformers, name)(BertConfig(**config)))


def gpt2(dropout: float = 0.0, **settings: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=dropout,
        embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
        **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def openai_gpt() -> Any:
    config = transformers.OpenAIGPTConfig(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3,
    )  # fmt: skip
    return transformers.OpenAIGPTLMHeadModel(config)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def bart(kind: str) -> Callable[[], Any]:
    config = transformers.BartConfig(
        vocab_size=32, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, dropout=0.0,
        max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=2, init_std=0.3,
    )  # fmt: skip
    return seeded(lambda: getattr(transformers, kind)(config))


def vit(kind: str) -> Callable[[], Any]:
    config = transformers.ViTConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=16, patch_size=4, encoder_stride=4, num_labels=3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.3,
    )  # fmt: skip
    return seeded(lambda: getattr(transformers, kind)(config))


def segformer(num_labels: int) -> Callable[[], Any]:
    config = transformers.SegformerConfig(
        num_encoder_blocks=1, depths=[1], sr_ratios=[1], hidden_sizes=[8], patch_sizes=[3],
        strides=[2], num_attention_heads=[1], mlp_ratios=[1], decoder_hidden_size=8,
        num_labels=num_labels, hidden_dropout_prob=0.0, classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
    )  # fmt: skip
    return seeded(lambda: transformers.SegformerForSemanticSegmentation(config))


def wav2vec2(reduction: str) -> Callable[[], Any]:
    config = transformers.Wav2Vec2Config(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, conv_dim=[8, 8], conv_stride=[5, 4], conv_kernel=[10, 4],
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        ctc_loss_reduction=reduction, hidden_dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, final_dropout=0.0,
        apply_spec_augment=False, pad_token_id=0,
    )  # fmt: skip
    return seeded(lambda: transformers.Wav2Vec2ForCTC(config))


def numbers(*shape: int) -> Tensor:
    return torch.randn(NUM_SAMPLES, *shape, generator=torch.Generator().manual_seed(1))


HEADS: dict[str, Head] = {
    "GPT-2": Head(gpt2, sequences_to_continue, next_targets),
    "OpenAI-GPT": Head(seeded(openai_gpt), sequences_to_continue, next_targets),
    "Llama": Head(llama, sequences_to_continue, next_targets),
    # Its name says causal, so that the Trainer counts shifted labels; its loss shifts nothing.
    "BART, decoder": Head(bart("BartForCausalLM"), sequences_to_continue, targets),
    "masked tokens": Head(berts("MaskedLM"), lambda: tokens_to_name(32), targets),
    "T5": Head(seeded(t5), sequences_to_continue, targets),
    "BART": Head(bart("BartForConditionalGeneration"), sequences_to_continue, targets),
    "classes": Head(bert, lambda: texts(labels=random_ints(0, 2, NUM_SAMPLES))),
    "multi-label": Head(
        berts("SequenceClassification", num_labels=3),
        lambda: texts(labels=random_ints(0, 2, NUM_SAMPLES, 3).float()),
    ),
    "regression": Head(
        berts("SequenceClassification", num_labels=1), lambda: texts(labels=numbers())
    ),
    "several numbers": Head(
        berts("SequenceClassification", num_labels=3, problem_type="regression"),
        lambda: texts(labels=numbers(3)),
    ),
    "named tokens": Head(
        berts("TokenClassification", num_labels=3), lambda: tokens_to_name(3), targets
    ),
    "question answering": Head(
        berts("QuestionAnswering"),
        lambda: texts(
            start_positions=random_ints(0, 4, NUM_SAMPLES),
            end_positions=random_ints(4, 8, NUM_SAMPLES),
        ),
    ),
    "multiple choice": Head(berts("MultipleChoice"), choices),
    "next sentence": Head(
        berts("NextSentencePrediction"), lambda: texts(labels=random_ints(0, 2, NUM_SAMPLES))
    ),
    "images": Head(
        vit("ViTForImageClassification"), lambda: images(labels=random_ints(0, 3, NUM_SAMPLES))
    ),
    "masked images": Head(
        vit("ViTForMaskedImageModeling"),
        lambda: images(bool_masked_pos=random_ints(0, 3, NUM_SAMPLES, 16) == 0),
        lambda item: int(item["bool_masked_pos"].sum()),
    ),
    "segmentation": Head(
        segformer(3),
        lambda: images(labels=maps(3)),
        lambda item: int((item["labels"] != 255).sum()),
    ),
    "foreground": Head(segformer(1), lambda: images(labels=maps(2))),
}
