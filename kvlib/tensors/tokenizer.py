"""Text to token ids and back, and the chat prompt of the book's default model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from kvlib.files import read, read_json
from kvlib.sizes import whole_number

MAX_FILE_BYTES = 128 * 2**20  # a vocabulary of 256,000 tokens takes a quarter

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
            ValueError: `tokenizer.json` is no tokenizer, or `config.json` gives no ids.
            OSError: one of the two is no plain file, or cannot be read.
        """
        bos_id, eos_ids = _end_ids(folder / "config.json")
        path = folder / "tokenizer.json"
        try:
            core = tokenizers.Tokenizer.from_str(read(path, MAX_FILE_BYTES).decode("utf-8"))
        except (OSError, MemoryError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises nothing narrower; a panic of it is none
            said = str(error)[:200]
            raise ValueError(f"{path} is not a tokenizers file: {said}") from error
        return cls(core, bos_id=bos_id, eos_ids=eos_ids)

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
        strange = [i for i, role in enumerate(roles) if role not in ("system", "user", "assistant")]
        if strange or not roles:
            raise ValueError(
                f"a chat is one or more messages by system, user or assistant, got {len(roles)},"
                f" of them by others: {strange}"
            )
        if roles[0] != "system":
            said = [{"role": "system", "content": _SYSTEM}, *said]
        turns = (f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in said)
        return "".join(turns) + "<|im_start|>assistant\n"


def _end_ids(path: Path) -> tuple[int | None, list[int]]:
    """The ids that begin and end a text, as `config.json` gives them."""
    try:
        config: Any = read_json(path)
        if not isinstance(config, dict):
            raise ValueError(f"expected a JSON object, got {config!r:.50}")
        bos, eos = config.get("bos_token_id"), config.get("eos_token_id")
        eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        for token in eos_ids if bos is None else [bos, *eos_ids]:
            whole_number("an id that begins or ends a text", token, least=0)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {str(error)[:200]}") from error
    return bos, eos_ids
