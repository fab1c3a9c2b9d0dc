"""Which tests look for the siblings of a public case: for each kind of fault, those that vary it.

A case is one input with one right outcome. Its kind is wider: the tests named here run many inputs
of the kind, chosen or drawn, against something simpler that is right.
"""

KINDS = {
    "refcount / double free": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_kinds_blocks.py::"
        "test_a_pool_counts_each_name_in_a_call_and_refuses_the_whole_or_nothing",
    ],
    "free / capacity accounting": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_memory_plan.py::test_the_parts_add_up_and_no_block_more_would_fit",
        "tests/test_kinds_serving.py::test_what_a_start_costs_is_what_it_takes",
    ],
    "block table / slot mapping": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_kinds_blocks.py::"
        "test_each_text_reads_its_own_tokens_whatever_is_shared_dropped_or_taken_back",
    ],
    "block growth off by one": [
        "tests/test_paged_memory.py::test_any_run_of_calls_keeps_the_books",
        "tests/test_kinds_blocks.py::test_a_table_is_never_a_block_too_long_or_too_short",
    ],
    "prefix hash identity": [
        "tests/test_content.py::"
        "test_keys_are_equal_just_where_all_tokens_up_to_there_and_the_extras_are",
        "tests/test_kinds_prefix.py::"
        "test_two_texts_have_a_key_in_common_just_where_they_begin_alike",
    ],
    "full prefix hit": [
        "tests/test_prefix.py::test_hash_index_and_radix_tree_of_single_tokens_find_the_same",
        "tests/test_kinds_prefix.py::test_a_prompt_seen_before_leaves_its_last_token_to_compute",
        "tests/test_kinds_prefix.py::test_a_row_and_a_tier_leave_the_last_token_too",
    ],
    "eviction order / recency": [
        "tests/test_retention.py::test_the_lowest_rank_goes_first",
        "tests/test_kinds_prefix.py::"
        "test_what_is_left_of_a_beginning_is_always_found_and_goes_end_first",
        "tests/test_kinds_prefix.py::test_of_a_text_below_the_device_the_end_is_given_up_first",
    ],
    "radix lock / split": [
        "tests/test_radix.py::test_edges_are_compressed",
        "tests/test_prefix.py::machine",
    ],
    "copy-on-write fork": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_kinds_blocks.py::"
        "test_each_text_reads_its_own_tokens_whatever_is_shared_dropped_or_taken_back",
    ],
    "preemption / resume": [
        "tests/test_preemption.py::test_preemption_shortens_nobody_and_every_token_is_accounted_for",
        "tests/test_kinds_serving.py::test_whoever_is_preempted_reads_its_own_text_to_the_end",
    ],
    "scheduler capacity / deadlock": [
        "tests/test_scheduler_machine.py::AnyOrder",
        "tests/test_kinds_serving.py::"
        "test_at_the_end_of_capacity_a_request_is_refused_at_once_or_served_to_its_end",
        "tests/test_kinds_serving.py::test_two_pools_end_all_they_took",
    ],
    "memory estimate": [
        "tests/test_sizes.py::test_linear_in_tokens_below_the_window",
        "tests/test_memory_plan.py::test_the_parts_add_up_and_no_block_more_would_fit",
        "tests/test_kinds_sizes.py::test_the_formula_counts_what_counting_counts",
        "tests/test_kinds_sizes.py::test_a_cache_allocates_what_the_formula_says",
        "tests/test_kinds_sizes.py::test_a_plan_promises_no_request_that_its_blocks_do_not_hold",
    ],
    "fragmentation / alignment / strides": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_kinds_blocks.py::test_what_is_said_to_fit_fits_and_nothing_else_does",
        "tests/test_kinds_blocks.py::"
        "test_aligned_rows_start_on_their_address_and_never_reach_into_each_other",
    ],
    "swap / tier ordering and mapping": [
        "tests/test_tiers.py::TierMachine",
        "tests/test_prefetch.py::test_every_plan_covers_what_it_promises",
        "tests/test_kinds_serving.py::test_whoever_is_preempted_reads_its_own_text_to_the_end",
        "tests/test_kinds_prefix.py::test_a_text_that_came_up_again_still_ends_first",
    ],
    "metric and benchmark honesty": [
        "tests/test_scheduler_machine.py::AnyOrder",
        "tests/test_kinds_serving.py::test_figures_of_a_run_follow_from_its_requests_alone",
        "tests/test_kinds_serving.py::test_a_load_test_counts_every_request_once",
    ],
    "length / crop / reset / reorder": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_quantized.py::CacheMachine",
        "tests/test_lossy.py::LossyMachine",
        "tests/test_hf_machine.py::Machine",
    ],
    "cache growth / overflow": [
        "tests/test_invariants.py::test_random_operations_keep_the_law",
        "tests/test_growing.py::test_rows_grow_by_the_factor_even_by_a_single_slot",
    ],
    "stale or uninitialised slots": [
        "tests/test_invariants.py::CacheMachine",
        "tests/test_quantized.py::CacheMachine",
        "tests/test_lossy.py::LossyMachine",
        "tests/test_kinds_attention.py::"
        "test_a_number_that_is_none_shows_in_its_sequence_and_in_no_other",
    ],
    "sliding window / ring buffer": [
        "tests/test_kinds_windows.py::"
        "test_a_ring_and_blocks_go_back_just_where_the_next_query_finds_its_window",
        "tests/test_kinds_windows.py::test_a_ring_knows_which_positions_it_holds_after_any_steps",
        "tests/test_lossy.py::test_sinks_and_window_are_held_however_the_tokens_come",
        "tests/test_hf_machine.py::Hybrid",
    ],
    "causal mask alignment": [
        "tests/test_attention.py::test_the_fast_way_meets_the_reference",
        "tests/test_attention.py::test_a_mask_shifted_by_one_is_caught",
    ],
    "chunked prefill offset": [
        "tests/test_contiguous.py::test_any_chunking_gives_the_logits_of_the_whole_text",
        "tests/test_paged.py::test_any_chunking_in_any_blocks_gives_the_logits_of_the_whole_text",
        "tests/test_rolling.py::test_attention_is_that_of_a_window_however_the_tokens_are_chunked",
        "tests/test_kinds_codes.py::test_codes_do_not_depend_on_how_a_text_came",
    ],
    "empty or fully masked -> NaN; merging parts": [
        "tests/test_paged.py::test_parts_merge_in_any_order_and_empty_ones_count_for_nothing",
        "tests/test_kinds_attention.py::test_parts_with_a_number_that_is_none_merge_to_none",
        "tests/test_kinds_attention.py::"
        "test_no_part_at_all_is_refused_in_words_and_nothing_held_is_nothing",
    ],
    "GQA head mapping": [
        "tests/test_attention.py::test_the_fast_way_meets_the_reference",
        "tests/test_paged_cpu.py::test_random_sizes",
        "tests/test_kinds_attention.py::test_heads_are_mapped_in_groups_however_many_share_a_key",
    ],
    "dtype: overflow, accumulation, tolerance": [
        "tests/test_kinds_attention.py::test_scores_beyond_half_precision_are_kept_by_every_cache",
        "tests/test_kinds_attention.py::test_the_mean_of_many_values_is_their_mean",
        "tests/test_kinds_codes.py::"
        "test_the_largest_numbers_come_back_finite_in_every_format_and_type",
    ],
    "index overflow": [
        "tests/test_kinds_attention.py::test_an_offset_beyond_two_to_the_31_numbers_is_read",
    ],
    "left padding / per-row positions": [
        "tests/test_hf_machine.py::"
        "test_a_row_of_pads_alone_waits_and_rows_read_as_they_would_alone",
        "tests/test_hf.py::test_every_exact_cache_gives_the_texts_of_transformers_own",
    ],
    "positions after eviction or shift": [
        "tests/test_lossy.py::LossyMachine",
        "tests/test_kinds_windows.py::test_a_ring_knows_which_positions_it_holds_after_any_steps",
    ],
    "quantized cache": [
        "tests/test_codes.py::test_a_number_is_read_back_within_half_a_step",
        "tests/test_quantized.py::CacheMachine",
        "tests/test_kinds_codes.py::"
        "test_the_largest_numbers_come_back_finite_in_every_format_and_type",
        "tests/test_kinds_codes.py::test_codes_do_not_depend_on_how_a_text_came",
    ],
    "widget rendering in the built book": [
        "tests/test_drawings.py::test_a_drawing_draws_at_any_values",
        "tests/test_live_page.py::test_every_widget_moves_by_keyboard_and_says_what_came",
        "tests/test_pages.py::test_no_page_needs_a_widget_manager_or_anything_from_elsewhere",
    ],
    "notebook test blind spots": [
        "tests/test_notebooks.py::test_a_notebook_is_complete_and_honest",
        "tests/test_notebooks.py::test_the_checker_sees_a_fault",
        "tests/test_run_notebook.py::test_what_is_not_as_stored_fails_and_is_shown",
    ],
    "book build and execution": [
        "tests/test_notebook_tool.py::test_what_an_environment_brings_is_not_run",
        "tests/test_pages.py::test_only_pages_of_the_contents_are_built",
        "tests/test_book.py::test_every_page_is_in_the_contents_once",
    ],
    "environment: no GPU, fonts": [
        "tests/test_plot_letters.py::test_a_letter_that_the_font_lacks_is_an_error_and_no_empty_box",
        "tests/test_plot_letters.py::test_a_readers_own_settings_do_not_reach_a_plot",
        "tests/test_meta_device.py::test_a_device_that_is_not_there_is_a_clear_error",
    ],
}
