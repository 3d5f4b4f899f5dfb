"""Batches of one step, and which of them reach every class of key."""

from collections.abc import Iterator
from dataclasses import dataclass

from aotpack.deployments import Deployment

_CLASSES = (1, 2, 16)

_MANY = 65
"""Too many requests for the packed decode kernel's tile for few, which is for 64 value heads in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The requests of one step, in the order in which runners lay them out.

    Attributes:
        drafted: query lengths of requests that verify draft tokens.
        decodes: how many requests have one token and a state.
        prefills: query lengths of requests without a state.
    """

    drafted: tuple[int, ...] = ()
    decodes: int = 0
    prefills: tuple[int, ...] = ()

    @property
    def queries(self) -> list[int]:
        """The query length of each request."""
        return [*self.drafted, *[1] * self.decodes, *self.prefills]

    def fits(self, deployment: Deployment) -> bool:
        """Whether one step of the deployment can hold it."""
        return (
            len(self.queries) <= deployment.max_num_seqs
            and sum(self.queries) <= deployment.max_num_batched_tokens
            and max(self.queries) <= deployment.model_len
        )


def batches(deployment: Deployment) -> Iterator[Batch]:
    """Batches to try wherever the states' indices lie."""
    # The packed decode kernel has one tile for few requests, one for many, and another grid for very many.
    for requests in (*_CLASSES, _MANY, deployment.max_num_seqs):
        yield Batch(decodes=requests)
    yield from _prefills((2,))
    if verified := verified_tokens(deployment):
        yield Batch(drafted=(1,))
        for requests in _CLASSES:
            yield Batch(drafted=(verified,) * requests)
        yield Batch(drafted=(verified,), prefills=(2,))


def more_batches(deployment: Deployment) -> Iterator[Batch]:
    """Batches to try once: what they add does not depend on where the states' indices lie."""
    for tokens in _CLASSES:
        yield from _prefills((tokens,))
    if exports_checkpoints(deployment):
        # A prefill past the end of a block has a checkpoint there, exported from inside its chunks.
        past = deployment.block_tokens + 1
        for prefills in ((past,), (2, past)):
            yield Batch(prefills=prefills)
            if verified := verified_tokens(deployment):
                yield Batch(drafted=(verified,), prefills=prefills)


def _prefills(prefills: tuple[int, ...]) -> Iterator[Batch]:
    """Prefills alone, and behind one decode: gates unaligned from any row on are so from there."""
    yield Batch(prefills=prefills)
    yield Batch(decodes=1, prefills=prefills)


def verified_tokens(deployment: Deployment) -> int:
    """Tokens of a request that verifies drafts, 0 where none does."""
    speculates = deployment.speculative_tokens and not deployment.pooling
    return 1 + deployment.speculative_tokens if speculates else 0


def exports_checkpoints(deployment: Deployment) -> bool:
    """Whether prefills export checkpoints of their states."""
    return deployment.gdn_prefill == "flashinfer" and deployment.prefix_caching
