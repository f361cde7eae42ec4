from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from infobatch_lab.language import from_gguf, transformers

TOKENS = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ċ"]
WIDTH = 8


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A Llama of one layer in float32, with a tokenizer; returns its tensors."""
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(TOKENS), WIDTH),
        **{f"blk.0.attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{part}.weight": (WIDTH, WIDTH) for part in ("gate", "up", "down")},
        **{f"blk.0.{part}_norm.weight": (WIDTH,) for part in ("attn", "ffn")},
        "output_norm.weight": (WIDTH,),
        "output.weight": (len(TOKENS), WIDTH),
    }
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_file_is_converted_once_and_can_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = write_gguf(tmp_path / "small.gguf")
    folder = from_gguf(tmp_path / "small.gguf")
    assert capsys.readouterr().err == ""
    library = transformers()
    network = library.AutoModelForCausalLM.from_pretrained(folder)
    assert not getattr(network, "is_quantized", False)  # the Trainer would refuse it
    state = network.state_dict()
    for theirs, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("output.weight", "lm_head.weight"),
    ):
        assert state[ours].equal(torch.from_numpy(tensors[theirs]))
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("<|im_start|>abb<|im_end|>", add_special_tokens=False)["input_ids"]
    assert [TOKENS[token] for token in tokens] == ["<|im_start|>", "ab", "b", "<|im_end|>"]
    assert tokenizer.eos_token == "<|im_end|>"
    (tmp_path / "small.gguf").unlink()
    assert from_gguf(tmp_path / "small.gguf") == folder
    assert [path.name for path in tmp_path.iterdir()] == ["small.float32"]
