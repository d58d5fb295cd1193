"""Which documents of a batch the contrastive loss pushes apart and which it draws together, by their labels."""

from torch import Tensor, nn

from hill.nn.across import whole
from hill.nn.lists import drop_parents, is_listed, own_columns
from hill.nn.losses import dissimilarity, most_specific, share_none

NEGATIVES = ("all", "others", "weighted")


class Partners(nn.Module):
    """How much documents of the whole batch, also of one that several processes share, belong apart or together.

    Their labels are targets (B, L) or lists (B, M).
    """

    edges: Tensor

    def __init__(self, edges: Tensor, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.register_buffer("edges", edges, persistent=False)  # child and parent, (E, 2)

    def negatives(self, labels: Tensor, kind: str) -> Tensor | None:
        """How much each document is a negative of each other: (B, B), or none for all alike."""
        match kind:
            case "others":
                return share_none(self._most_specific(whole(labels)))
            case "weighted":
                labels = whole(labels)
                return dissimilarity(own_columns(labels, self.labels) if is_listed(labels) else labels)
        return None

    def alike(self, labels: Tensor) -> Tensor:
        """How much each document is a partner of each other: (B, B)."""
        return 1 - dissimilarity(self._most_specific(whole(labels)))

    def _most_specific(self, labels: Tensor) -> Tensor:
        """The most specific labels of documents: of targets (B, L) as such, of lists as columns of their own."""
        child, parent = self.edges.T
        if not is_listed(labels):
            return most_specific(labels, child, parent)
        edges: Tensor = (parent * (self.labels + 1) + child).sort().values
        return own_columns(drop_parents(labels, edges, self.labels), self.labels)
