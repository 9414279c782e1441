"""BatchNorm is replaced on a copy, and every replacement is told."""

from pathlib import Path

import pytest
import torch
from conftest import tiny_plan, train
from torch import nn

from apportion.errors import IncompatibleModel
from apportion.training import replace_batch_norm


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(12)
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3), self.norm, nn.ReLU(), nn.Conv2d(12, 64, 3), nn.BatchNorm2d(64))
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 4, 16), nn.BatchNorm1d(16, affine=False), nn.Linear(16, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def test_it_works_on_a_copy_and_says_what_it_did() -> None:
    model = Images().train()
    nn.init.normal_(model.norm.weight)
    before = str(model)
    replaced = replace_batch_norm(model)
    assert str(model) == before
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in replaced.model.modules())
    assert str(replaced).splitlines() == [
        "norm: BatchNorm2d(12) → GroupNorm(6, 12), scale and offset kept; running statistics dropped",
        "body.4: BatchNorm2d(64) → GroupNorm(32, 64), scale and offset kept; running statistics dropped",
        "head.2: BatchNorm1d(16) → GroupNorm(2, 16), without scale and offset, as before; running statistics dropped",
    ]
    new = replaced.model
    assert isinstance(new, Images)
    assert new.norm is new.body[1], "one layer with two names stays one"
    assert torch.equal(new.norm.weight, model.norm.weight)
    assert new.norm.weight is not model.norm.weight
    assert set(new.state_dict()) == {
        name for name in model.state_dict() if "running" not in name and "num_" not in name
    }


def test_what_was_refused_trains_after_the_replacement(tmp_path: Path) -> None:
    data = (torch.randn(60, 1, 6, 6), torch.randint(0, 2, (60,)))
    with pytest.raises(IncompatibleModel, match="replace_batch_norm"):
        train(tmp_path / "refused", model=Images(), data=data)
    train(tmp_path / "run", tiny_plan(epochs=1), model=replace_batch_norm(Images()).model, data=data)
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(("layer", "groups"), [(nn.BatchNorm2d(7), 1), (nn.BatchNorm1d(9), 1), (nn.BatchNorm3d(10), 5)])
def test_no_group_is_so_small_that_it_is_normalised_to_nothing(layer: nn.Module, groups: int) -> None:
    new = replace_batch_norm(layer).model
    assert isinstance(new, nn.GroupNorm)
    assert new.num_groups == groups


def test_modes_and_the_most_groups_are_respected() -> None:
    replaced = replace_batch_norm(nn.Sequential(nn.BatchNorm2d(64)).eval(), groups=5)
    assert isinstance(replaced.model[0], nn.GroupNorm)
    assert (replaced.model[0].num_groups, replaced.model[0].training) == (4, False)
    assert "nothing to replace" in str(replace_batch_norm(nn.Linear(2, 2)))
    with pytest.raises(IncompatibleModel, match="run the model once"):
        replace_batch_norm(nn.Sequential(nn.LazyBatchNorm2d()))
