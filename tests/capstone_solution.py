"""The sample solution of the capstone, as its page shows it."""

from kvlib.admission import AdmitPrompt
from kvlib.scheduled_step import StepLimits
from kvlib.tensors.engine import Engine
from kvlib.waiting import PriorityLine


class Selective(Engine):
    def submit(self, prompt_ids, max_new_tokens, **options):
        options["priority"] = len(prompt_ids)
        return super().submit(prompt_ids, max_new_tokens, **options)

    def step(self):
        for request in list(self.live.values()):
            waited = self.clock() - request.submitted_s
            if not request.tokens and waited > 0.6:
                request.cancel()
        return super().step()


def build(model, num_blocks):
    return Selective(
        model,
        num_blocks,
        limits=StepLimits(max_tokens=128),
        admission=AdmitPrompt(0.1),
        waiting=PriorityLine(),
        clock=model.now,
    )
