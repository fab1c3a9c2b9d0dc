"""How many users, at what context, on which GPU, within which latency.

`python -m kvlib.capacity MODEL [GPU]` divides the memory of one card, or of every card, and says
how many requests it holds at once; with a latency, how many users it serves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from kvlib.catalog import GPU, ModelShape, gpu, gpus, model, models
from kvlib.fleet import users, why_not_timed
from kvlib.memory_plan import CapacityPlan, DoesNotFit, plan_capacity
from kvlib.overheads import GIB
from kvlib.plan_interval import plan_range
from kvlib.scheduled_step import StepLimits
from kvlib.serving_run import Target

__all__ = ["main", "table"]

# What the intervals cover, in lines of at most 79 columns.
MEMORY_ENDS = "low and high: graphs, runtime and logits at their most and least in the logs seen"
USER_ENDS = """\
users: from the low memory at 0.4 of a roofline's speed to the high one at 0.8,
over 3 samples, each of which flatters by a tenth or more; no confidence interval"""


def table(plans: Mapping[str, CapacityPlan | None], context: int) -> list[str]:
    r"""Returns three plans as lines: each part in GiB on one GPU, then what the cache holds.

    Args:
        plans: of `plan_range`.
        context: tokens of a sequence.

    Example:
        >>> print(*table(plan_range(model("Qwen3-8B"), gpu("L4")), 8192), sep="\n")
        GiB on each GPU               low     likely       high
        weight                          -      15.26      15.26
        activation                      -       0.75       0.75
        graph                           -       0.50       0.17
        runtime                         -       0.40       0.16
        kv                              -       3.32       3.89
        free                            -       1.76       1.76
        tokens                          -     24,208     28,352
        of 8,192 at once                -       2.96       3.46
    """
    names = next((list(plan.parts()) for plan in plans.values() if plan), [])
    rows = {
        name: [plan and f"{plan.parts()[name] / GIB:.2f}" for plan in plans.values()]
        for name in names
        if name != "foreign" or any(plan and plan.foreign_bytes for plan in plans.values())
    }
    rows["tokens"] = [plan and f"{_tokens(plan, context):,}" for plan in plans.values()]
    rows[f"of {context:,} at once"] = [
        plan and f"{plan.concurrency(context):,.2f}" for plan in plans.values()
    ]
    head = f"{'GiB on each GPU':<22}" + "".join(f"{name:>11}" for name in plans)
    return [head] + [
        f"{name:<22}" + "".join(f"{each or '-':>11}" for each in row) for name, row in rows.items()
    ]


def _tokens(plan: CapacityPlan, context: int) -> int:
    # With windows a token has no size of its own: those of sequences as long as asked for.
    if plan.kv.num_local_layers:
        return int(plan.concurrency(context) * context)
    return plan.num_tokens


def _fewest(known: ModelShape, card: GPU, options: dict[str, Any], context: int) -> int | None:
    for num_gpus in (1, 2, 4, 8):
        plan = plan_range(known, card, **options, num_gpus=num_gpus)["likely"]
        if plan and plan.concurrency(context) >= 1:
            return num_gpus
    return None


def _answer(
    known: ModelShape, card: GPU, options: dict[str, Any], given: argparse.Namespace
) -> tuple[bool, list[str]]:
    num_gpus = given.num_gpus or _fewest(known, card, options, given.context)
    if num_gpus is None:
        room = f"no room for {given.context:,} tokens of {known.name} on 8 of them"
        return False, [f"{card.name}: {room}"]
    plans = plan_range(known, card, **options, num_gpus=num_gpus)
    if not plans["high"]:
        try:
            plan_capacity(known, card, **options, num_gpus=num_gpus)
        except DoesNotFit as error:
            return False, [fill(f"{num_gpus} x {card.name}: does not fit; in GiB, {error}", 79)]
    lines = [f"{num_gpus} x {card.name}"]
    if given.gpu:
        lines += table(plans, given.context)
    else:
        held = [f"{plan.concurrency(given.context):,.1f}" if plan else 0 for plan in plans.values()]
        lines[0] += f": {held[1]} at once ({held[0]} to {held[2]})"
    if given.ttft:
        served = users(
            plans,
            known,
            card,
            Target(given.ttft, given.tpot),
            every_s=given.every,
            workload=given.workload,
            weight_dtype=given.weight_dtype,
            limits=StepLimits(given.max_batched_tokens, given.max_num_seqs),
        )
        lines.append("users served in time: {1:,.0f} ({0:,.0f} to {2:,.0f})".format(*served))
    return True, lines


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [
        f"{kind}: {', '.join(all_)}" for kind, all_ in (("models", models()), ("cards", gpus()))
    ]
    parser = argparse.ArgumentParser(
        prog="python -m kvlib.capacity",
        description="How many requests a card holds at once, and how many users it serves in time.",
        epilog="\n\n".join(fill(each, 79) for each in names)
        + "\n\nexit codes: 0 answered, 1 nothing fits, 2 an argument is refused",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", help="one of those below")
    add("gpu", nargs="?", metavar="card", help="one of those below; all if not given")
    add("--context", type=int, metavar="N", help="tokens of a request; 8192, or the model's most")
    add("--num-gpus", type=int, metavar="N", help="the fewest of 1, 2, 4, 8 if not given")
    add("--utilization", type=float, default=0.92, metavar="X", help="share of a card; 0.92")
    add("--max-batched-tokens", type=int, default=8192, metavar="N", help="of a step; 8192")
    add("--max-num-seqs", type=int, default=256, metavar="N", help="requests of a step; 256")
    add("--weight-dtype", default="bfloat16", metavar="TYPE", help="bfloat16, fp8, int4, ...")
    add("--kv-dtype", metavar="TYPE", help="of the cache; the model's own")
    add("--ttft", type=float, metavar="S", help="seconds to the first token; with --tpot: users")
    add("--tpot", type=float, metavar="S", help="seconds for each token after it")
    add("--every", type=float, default=60.0, metavar="S", help="between a user's requests; 60")
    add("--workload", default="azure-conv", metavar="TRACE", help="whose lengths; azure-conv")
    return parser.parse_args(arguments)


def _checked(given: argparse.Namespace) -> ModelShape:
    known = model(given.model)
    if given.context is None:
        given.context = min(8192, known.context_length)
    if given.context > known.context_length:
        raise ValueError(
            f"{known.name} has a context of {known.context_length:,} tokens, "
            f"asked for {given.context:,}"
        )
    if given.num_gpus is not None and given.num_gpus < 1:
        raise ValueError(f"--num-gpus must be at least 1, got {given.num_gpus}")
    if (given.ttft is None) != (given.tpot is None):
        raise ValueError("users need both --ttft and --tpot; only one was given")
    if given.ttft is not None:
        Target(given.ttft, given.tpot)  # refuses what is no time
        if reason := why_not_timed(known):
            raise ValueError(reason)
    return known


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        0; 1 where nothing fits on any card that was asked for; 2 for an argument that is refused.
    """
    given = _parse(arguments)
    names = ("utilization", "max_batched_tokens", "max_num_seqs", "weight_dtype", "kv_dtype")
    options = {name: getattr(given, name) for name in names}
    fitted = False
    try:
        known = _checked(given)
        for card in [gpu(given.gpu)] if given.gpu else map(gpu, gpus()):
            fits, lines = _answer(known, card, options, given)
            fitted |= fits
            print(*lines, sep="\n", flush=True)
    except (TypeError, ValueError) as error:
        print(fill(str(error), 79), file=sys.stderr)
        return 2
    if fitted:
        print(MEMORY_ENDS, *[USER_ENDS] * bool(given.ttft), sep="\n")
    return 0 if fitted else 1


if __name__ == "__main__":
    sys.exit(main())
