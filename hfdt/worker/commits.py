"""Commits within an epoch (`--commit-every 200steps`): when they are made, and how an epoch resumes from one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdt.job import BatchHooks, FeedData, JobSpec
from fdt.tensors import Array
from hfdt.algorithm import StepAlgorithm


@dataclass(frozen=True)
class Begin:
    """The start of an epoch that resumes after `step` steps: its samples, metric state and number of skipped steps."""

    step: int
    samples: int
    metrics: Sequence[Array]
    skipped: int = 0


def plan(spec: JobSpec, rule: Any) -> tuple[int, list[str]]:
    """Return the steps between two commits (0: only at the end of an epoch) and lines for the user."""
    steps, reason = int(spec.options.get("commit_every", "0")), _why_not(spec, rule)
    if steps and reason:
        return 0, [f"--commit-every counts as 1epoch: {reason}"]
    return steps, []


def take(session: Any, logs: Mapping[str, Any]) -> tuple[list[Array], int]:
    """Return (metric state, samples of the epoch) of a hfdt.worker.session.RankProgram over all ranks. A collective."""
    _, metrics = session.peek(logs)
    mine = session.sharded.counted[0]
    total = session.comm.sum([mine], "hfdt.samples")[0] if session.comm.size > 1 else mine
    return metrics, int(total)


def _why_not(spec: JobSpec, rule: Any) -> str:
    if not isinstance(rule, StepAlgorithm):
        return "between the ends of rounds a rule's ranks differ"
    if isinstance(spec.data, FeedData):
        return "the script's process draws the batches"
    if spec.fit.batch_hooks is not BatchHooks.NONE:
        return "callbacks see every step"
    return ""
