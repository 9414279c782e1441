"""How much one unit can move each Gaussian mechanism, when nothing is claimed for the secrecy of its batch.

Disjoint batches cost one release: a unit is in exactly one batch of a pass, so a pass of equal noise is no worse than
one release (the paper's Theorem 2), provided that the unit's batch does not depend on the presence of others.
"""

from apportion.events import (
    Adjacency,
    GaussianRelease,
    Leaf,
    PartitionEpoch,
    PoissonEpoch,
    ShuffleEpoch,
)


def releases(leaf: Leaf, adjacency: Adjacency) -> tuple[float, int] | str:
    """(μ, n): the leaf is dominated by n releases N(0, 1) against N(μ, 1); or the reason why it is not.

    Guarantees: for `ShuffleEpoch`, zero-out and replace-one only (fixed sizes: a record's batch depends on how many
    others there are). For `PartitionEpoch`, all adjacencies. For `PoissonEpoch`, every step counts.
    """
    replaced = adjacency == "replace-one"
    match leaf:
        case GaussianRelease(sigma=sigma, replace_one=factor):
            return (factor if replaced else 1.0) / sigma, 1
        case ShuffleEpoch(sigma=sigma):
            if adjacency == "add-remove":
                return (
                    "a permutation cut into fixed sizes moves other records when one is added; "
                    "use zero-out, or Partition batching"
                )
            return (2.0 if replaced else 1.0) / sigma, 1
        case PartitionEpoch(sigma=sigma):
            return (2.0 if replaced else 1.0) / sigma, 1
        case PoissonEpoch(sigma=sigma, steps=steps):
            return (2.0 if replaced else 1.0) / sigma, steps
        case _:
            return "it is not a Gaussian mechanism"
