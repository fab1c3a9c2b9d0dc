"""A GGUF file and the Hugging Face folder made of it hold the same model."""

from __future__ import annotations

from pathlib import Path

import gguf

from kvlib.tensors import gguf_convert, model_cache
from kvlib.tensors.weights import load_model
from tiny_folder import SPECIAL, VOCAB, same_weights, tiny_model


def test_a_gguf_file_becomes_the_folder_it_was_made_from(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "out").mkdir()
    gguf_convert.convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(model_cache.FILES)
    model, tokenizer = load_model(tmp_path / "out")
    assert same_weights(model)
    assert model.config.rms_norm_eps == 1e-5
    ids = [VOCAB[token] for token in ("<|im_start|>", "1", "2", "Ġt", "o")]
    assert tokenizer.encode("<|im_start|>12 to") == ids
    assert tokenizer.decode(ids) == "12 to"


def write_gguf(path: Path) -> None:
    config, state = tiny_model().config, tiny_model().state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_q_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(list(VOCAB))
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(VOCAB) - len(SPECIAL)))
    writer.add_token_merges(["Ġ t", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    theirs = {ours: name for name, ours in gguf_convert._HF_PARTS.items()}
    for name, weight in state.items():
        stem, _, kind = name.rpartition(".")
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            stem, prefix = part, f"blk.{layer}."
        else:
            prefix = ""
        for part, heads in (("q_proj", config.num_q_heads), ("k_proj", config.num_kv_heads)):
            if stem.endswith(part):  # llama.cpp's own permutation
                halves = weight.reshape(heads, 2, config.head_dim // 2, -1)
                weight = halves.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{prefix}{theirs[stem]}.{kind}", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
