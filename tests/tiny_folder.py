"""A random two-layer Llama as a Hugging Face folder: small, complete, the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from kvlib.tensors.llama import Llama
from kvlib.tensors.llama_config import LlamaConfig

HF_CONFIG = {
    "model_type": "llama",
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 0],
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB = {
    t: i for i, t in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġt", "12"])
}


def tiny_model() -> Llama:
    return Llama.random(LlamaConfig.from_hf(HF_CONFIG), seed=0)


def write_folder(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HF_CONFIG | changes))
    core = tokenizers.Tokenizer(models.BPE(vocab=VOCAB, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    save_file(tiny_model().state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def same_weights(model: Llama) -> bool:
    wanted = tiny_model().state_dict()
    found = model.state_dict()
    return wanted.keys() == found.keys() and all(
        torch.equal(wanted[n], found[n].cpu()) for n in wanted
    )
