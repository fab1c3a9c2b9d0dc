"""Text to ids and back, and the chat prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlib.tensors.tokenizer import Tokenizer
from tiny_folder import write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny")


def test_a_chat_is_one_marked_turn_after_another(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.chat(said) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.chat("Hi").startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert tokenizer.encode(tokenizer.chat("Hi")).count(1) == 3


@pytest.mark.parametrize("messages", [[], [{"role": "usr", "content": "Hi"}]])
def test_a_chat_by_nobody_known_is_refused(folder: Path, messages: list) -> None:
    with pytest.raises(ValueError, match="by system, user or assistant"):
        Tokenizer.from_folder(folder).chat(messages)


def test_a_tokenizer_without_chat_markers_says_so(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_start|>", "<s>"))
    with pytest.raises(ValueError, match="does not know"):
        Tokenizer.from_folder(folder).chat("Hi")


def test_a_bad_tokenizer_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizers file"):
        Tokenizer.from_folder(folder)


# Ids that SmolLM2's published tokenizer gives these texts.
SMOLLM2_IDS = {
    "<|im_end|>": [2],
    "2048": [34, 32, 36, 40],
    " ½": [216, 16738],
}


@pytest.mark.model
def test_the_real_tokenizer_splits_numbers_into_digits(real_model) -> None:
    _, tokenizer = real_model
    for text, ids in SMOLLM2_IDS.items():
        assert tokenizer.encode(text) == ids
    assert len(tokenizer.encode(tokenizer.chat("What is the capital of France?"))) == 37


@pytest.mark.model
@given(text=st.text(st.characters(exclude_categories=["Cc", "Cn", "Cs"])))
def test_the_real_tokenizer_gives_assigned_characters_back(real_model, text: str) -> None:
    _, tokenizer = real_model
    assert tokenizer.decode(tokenizer.encode(text)) == text
