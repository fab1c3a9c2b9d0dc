"""Text to token ids and back, and the chat prompt of the book's default model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Tokenizer:
    """What turns text into token ids: a thin cover over `tokenizers.Tokenizer`.

    Args:
        core: the tokenizer itself.
        bos_id: the id that begins a text, None where the model has none.
        eos_ids: the ids that end an answer; generation stops at any of them.
    """

    def __init__(
        self, core: tokenizers.Tokenizer, *, bos_id: int | None, eos_ids: Iterable[int]
    ) -> None:
        self.core = core
        self.bos_id = bos_id
        self.eos_ids = tuple(eos_ids)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Reads `tokenizer.json`, and the bos and eos ids of `config.json`.

        Raises:
            FileNotFoundError: one of the two is missing.
            ValueError: `tokenizer.json` is no tokenizer.
        """
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        path = folder / "tokenizer.json"
        text = path.read_text(encoding="utf-8")
        try:
            core = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is not a tokenizers file: {error}") from error
        eos = config.get("eos_token_id")
        eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return cls(core, bos_id=config.get("bos_token_id"), eos_ids=eos_ids)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`; special tokens written in it become their single id.

        A bos is put in front only where the model's own `tokenizer.json` says so; SmolLM2's does
        not. SmolLM2 has no id for six control characters and for planes 4 to 11 of Unicode (all
        unassigned), so text made of those does not come back whole.
        """
        return self.core.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of `ids`, special tokens left out.

        A character may span several ids: the text of a part can end in U+FFFD until the rest comes.
        """
        return self.core.decode(list(ids))

    def chat(self, messages: str | Sequence[Mapping[str, str]]) -> str:
        """Returns the prompt after which the model writes the assistant's next answer.

        SmolLM2's own template (ChatML): each message stands between `<|im_start|>role` and
        `<|im_end|>`, and a system line is put in front unless the first message is one. The text
        of a message is not escaped, so a message can pretend to end itself.

        Args:
            messages: what was said so far, oldest first, each with "role" (system, user or
                assistant) and "content"; or a text alone, which the user says.

        Raises:
            ValueError: no messages, an unknown role, or a tokenizer without the two markers.
        """
        if self.core.token_to_id("<|im_start|>") is None:
            raise ValueError(
                "chat() writes <|im_start|> and <|im_end|>, which this tokenizer does not know: "
                "build this model's prompt as text"
            )
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        roles = [message["role"] for message in said]
        if not roles or not {"system", "user", "assistant"}.issuperset(roles):
            raise ValueError(
                f"a chat is one or more messages by system, user or assistant, got roles {roles}"
            )
        if roles[0] != "system":
            said = [{"role": "system", "content": _SYSTEM}, *said]
        turns = (f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in said)
        return "".join(turns) + "<|im_start|>assistant\n"
