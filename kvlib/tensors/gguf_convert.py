"""Turn the default model's GGUF file into a Hugging Face folder. Runs once per reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from kvlib.tensors.gguf_check import check_gguf
from kvlib.tensors.llama_config import LlamaConfig

_HF_PARTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # GGUF's token_type of special tokens

Field = Callable[[str], Any]


def convert_gguf(path: Path, folder: Path) -> None:
    """Writes a Hugging Face folder from the GGUF file of SmolLM2.

    The 4-bit weights become the float32 numbers they stand for. Only what this one file needs is
    known here: llama architecture, tied embeddings, byte-level BPE with the `smollm` pre-tokenizer
    (each digit alone, then GPT-2's split). Files come to the folder when all are made, its
    config.json last.

    Raises:
        ValueError: it is no sound GGUF file, or not of such a model.
        OSError: it cannot be read, or the folder cannot be written into.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    check_gguf(path)
    with TemporaryDirectory(prefix=".half-", dir=folder) as name:
        half = Path(name)
        try:
            _convert(path, half)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # whatever two libraries make of what the file says
            said = f"{type(error).__name__}: {str(error)[:200]}"
            raise ValueError(f"{path} is no model that is known here: {said}") from error
        # Without its config a folder is no model, so that comes last.
        for made in sorted(half.iterdir(), key=lambda file: file.name == "config.json"):
            made.replace(folder / made.name)


def _convert(path: Path, folder: Path) -> None:
    reader = GGUFReader(path)

    def field(key: str) -> Any:
        return reader.fields[key].contents()

    config = _config(field)
    LlamaConfig.from_hf(config)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    weights = {}
    for tensor in reader.tensors:
        name = _hf_name(tensor.name)
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        head_count = heads.get(name.split(".")[-2])
        weights[name] = weight if head_count is None else _unpermute(weight, head_count)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(field).save(str(folder / "tokenizer.json"))
    chat = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": field("tokenizer.ggml.tokens")[config["bos_token_id"]],
        "eos_token": field("tokenizer.ggml.tokens")[config["eos_token_id"]],
        "chat_template": field("tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(chat, indent=1), encoding="utf-8")


def _hf_name(name: str) -> str:
    """Returns Hugging Face's name of a GGUF tensor.

    Example:
        >>> _hf_name("blk.7.attn_q.weight")
        'model.layers.7.self_attn.q_proj.weight'
    """
    *block, part, kind = name.split(".")
    layer = f"model.layers.{block[1]}." if block else ""
    return f"{layer}{_HF_PARTS[part]}.{kind}"


def _unpermute(weight: Tensor, num_heads: int) -> Tensor:
    """Returns the rows of a query or key projection in Hugging Face's rotary order.

    GGUF stores the two rows that rotate together side by side (0, 1), (2, 3), ...; Hugging Face
    rotates row `i` with row `i + head_dim / 2`. Weights of one order under the rotation of the
    other give a model that runs and talks nonsense.

    Args:
        weight: [num_heads * head_dim, hidden_size].
        num_heads: Hq for queries, Hkv for keys.

    Example:
        >>> _unpermute(torch.arange(8).reshape(8, 1), num_heads=2).flatten().tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _config(field: Field) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": field("llama.rope.dimension_count"),
        "max_position_embeddings": field("llama.context_length"),
        "rope_theta": field("llama.rope.freq_base"),
        # kept as float32 in the file; seven digits give back the 1e-05 that was meant
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }


def _tokenizer(field: Field) -> tokenizers.Tokenizer:
    tokens = field("tokenizer.ggml.tokens")
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ValueError(f"{len(tokens) - len(vocab)} of {len(tokens)} tokens stand in it twice")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    core.decoder = decoders.ByteLevel()
    kinds = field("tokenizer.ggml.token_type")
    core.add_special_tokens(
        [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    )
    return core
