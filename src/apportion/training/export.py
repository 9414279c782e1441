"""From a trained model to a weights file with plain `state_dict` keys."""

import torch
from safetensors.torch import save


def weights_file(model: torch.nn.Module) -> bytes:
    """The model's state in safetensors format. Tied tensors are written under each of their names."""
    state = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    return bytes(save(state))
