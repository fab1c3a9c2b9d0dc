"""Public cases about bytes: what a cache takes, what a card has left, which piece is large enough.

They are tried beside the code they are about; here they get their ids.
"""

import test_arena
import test_memory_plan as plans
from public_cases import case

case("ME-1")(plans.test_ME_1_a_token_of_32_layers_and_8_heads)
case("ME-3")(plans.test_ME_3_windows_stop_growing)
case("ME-4")(plans.test_ME_4_hidden_size_counts_the_heads_already)
case("ME-6")(plans.test_ME_6_a_stage_counts_its_own_layers)
case("ME-9")(plans.test_ME_9_a_share_is_ours_and_what_is_free_is_not)
case("ME-10")(plans.test_ME_10_the_published_table_mixes_two_kinds_of_thousand)
case("FR-3")(test_arena.test_the_largest_hole_decides_and_not_the_total)


@case("ME-7")
def blocks_are_tokens_and_tokens_are_requests():
    for blocks, context, tokens, concurrency in (
        (1952, 20000, 31232, 1.5616),
        (1478, 29000, 23648, 0.8154),
        (229, 4096, 3664, 0.8945),
    ):
        plans.test_ME_7_blocks_are_tokens_and_tokens_are_requests(
            blocks, context, tokens, concurrency
        )
