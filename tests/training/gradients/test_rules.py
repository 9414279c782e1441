"""Every rule gives what a loop over single examples gives."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_comparison import assert_matches_loop
from torch import nn
from torch.nn import functional

few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
batches = st.sampled_from([1, 2, 3, 5, 8])


def squared(outputs, targets):
    """Smooth, and with a different weight for every output, so that nothing cancels by symmetry."""
    flat = outputs.flatten(1)
    weights = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)
    return (weights * (flat - targets[:, None]).square()).mean(1)


def data(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(shape[0], generator=generator, dtype=torch.float64)


@few
@given(batches, st.lists(st.integers(1, 5), max_size=2), st.integers(1, 6), st.integers(1, 40), st.booleans())
def test_linear(batch, between, inwards, outwards, bias):
    model = nn.Sequential(nn.Linear(inwards, outwards, bias=bias), nn.Tanh(), nn.Linear(outwards, 2))
    assert_matches_loop(model, squared, *data(batch, *between, inwards))


def test_linear_on_short_sequences_into_a_large_layer_uses_gram_matrices():
    assert_matches_loop(nn.Sequential(nn.Linear(30, 40), nn.Tanh()), squared, *data(6, 3, 30))


@few
@given(
    batches,
    st.sampled_from([(2, 3, 1), (2, 4, 2), (4, 4, 4), (1, 3, 1)]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([0, 1, "same", "valid"]),
    st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    st.booleans(),
)
@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_convolution(dimensions, batch, channels, kernel, stride, dilation, padding, mode, bias):
    inwards, outwards, groups = channels
    stride = 1 if padding == "same" else stride
    layer = (nn.Conv1d, nn.Conv2d)[dimensions - 1](
        inwards, outwards, kernel, stride, padding, dilation, groups, bias, padding_mode=mode
    )
    assert_matches_loop(nn.Sequential(layer, nn.Tanh()), squared, *data(batch, inwards, *(7, 6)[:dimensions]))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_convolution_with_uneven_kernel_and_same_padding():
    layers = nn.Conv2d(2, 3, (4, 2), padding="same"), nn.Tanh(), nn.Conv2d(3, 2, (1, 3), (2, 1), (0, 2), (1, 2))
    assert_matches_loop(nn.Sequential(*layers), squared, *data(4, 2, 6, 5))


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": (2, 0), "dilation": (2, 1)}, {"bias": False}])
def test_convolution_with_many_channels_goes_by_slices_of_the_image(options, mode):
    model = nn.Sequential(nn.Conv2d(16, 3, (3, 2), padding_mode=mode, **options), nn.Tanh())
    assert_matches_loop(model, squared, *data(4, 16, 18, 17))


def test_convolution_in_one_dimension_goes_by_slices():
    assert_matches_loop(nn.Sequential(nn.Conv1d(16, 3, 5, dilation=2), nn.Tanh()), squared, *data(4, 16, 300))


def test_large_convolution_on_small_images_uses_gram_matrices():
    assert_matches_loop(nn.Sequential(nn.Conv2d(24, 40, 3), nn.Tanh()), squared, *data(4, 24, 4, 4))


@few
@given(batches, st.booleans(), st.sampled_from([(4,), (3, 4), (5, 3, 4)]))
@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.RMSNorm])
def test_normalisation_over_features(layer, batch, affine, shape):
    model = nn.Sequential(nn.Linear(4, 4), layer(shape[-2:], elementwise_affine=affine), nn.Tanh())
    assert_matches_loop(model, squared, *data(batch, *shape))


@few
@given(batches, st.sampled_from([(), (5,), (3, 4)]), st.sampled_from([1, 2, 4]))
def test_group_norm(batch, space, groups):
    inputs, targets = data(batch, 4, *space)
    if groups == 4 and not space:
        space, inputs = (2,), inputs[..., None].expand(-1, -1, 2) * torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert_matches_loop(
        nn.Sequential(Scale(4, len(space)), nn.GroupNorm(groups, 4), nn.Tanh()), squared, inputs, targets
    )


@pytest.mark.parametrize("layer", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_instance_norm(layer):
    space = {nn.InstanceNorm1d: (5,), nn.InstanceNorm2d: (3, 4), nn.InstanceNorm3d: (2, 3, 2)}[layer]
    assert_matches_loop(nn.Sequential(layer(3, affine=True), nn.Tanh()), squared, *data(4, 3, *space))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_batch_norm_pinned_to_eval(layer):
    space = {nn.BatchNorm1d: (), nn.BatchNorm2d: (3, 4)}[layer]
    model = nn.Sequential(layer(3), nn.Tanh()).eval()
    model[0].running_mean.fill_(0.3)
    assert_matches_loop(model, squared, *data(4, 3, *space))


class Scale(nn.Module):
    """A layer with a raw parameter, which no rule knows."""

    def __init__(self, channels, dimensions):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, channels).reshape(channels, *[1] * dimensions))

    def forward(self, inputs):
        return inputs * self.scale


class Words(nn.Module):
    def __init__(self, padding=None, width=6):
        super().__init__()
        self.words = nn.Embedding(11, width, padding_idx=padding)
        self.head = nn.Linear(width, 2)

    def forward(self, ids):
        return self.head(torch.tanh(self.words(ids)).flatten(1, -2).mean(1) if ids.dim() > 1 else self.words(ids))


@few
@given(batches, st.sampled_from([(), (1,), (5,), (3, 4)]), st.sampled_from([None, 0, 4]))
def test_embedding(batch, shape, padding):
    ids = torch.randint(0, 11, (batch, *shape), generator=torch.Generator().manual_seed(batch))
    ids[:, ...] = torch.where(ids > 8, 4, ids)
    assert_matches_loop(Words(padding), squared, ids, data(batch)[1])


class Attends(nn.Module):
    def __init__(self, batch_first=True, cross=False, mask=False, weights=False, **options):
        super().__init__()
        self.first, self.cross, self.mask, self.weights = batch_first, cross, mask, weights
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)

    def forward(self, inputs):
        x = inputs if self.first else inputs.transpose(0, 1)
        other = torch.tanh(x) if self.cross else x
        length = inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype) if self.mask else None
        padding = (inputs[:, :, 0] > 1) if self.mask else None
        if padding is not None:
            padding = padding & (torch.arange(length) > 0)
            padding = torch.zeros_like(inputs[:, :, 0]).masked_fill(padding, float("-inf"))
        result, weights = self.attention(
            x, other, other, attn_mask=mask, key_padding_mask=padding, need_weights=self.weights
        )
        result = result if self.first else result.transpose(0, 1)
        return result.flatten(1) if weights is None else torch.cat([result.flatten(1), weights.flatten(1)], 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("weights", [True, False])
def test_attention(batch_first, cross, mask, weights):
    assert_matches_loop(Attends(batch_first, cross, mask, weights), squared, *data(4, 5, 8))


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}])
def test_unusual_attention(options):
    assert_matches_loop(Attends(**options), squared, *data(4, 5, 8))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_stock_transformer_encoder(training, norm_first, batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, functional.gelu, batch_first=batch_first, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder

        def forward(self, x):
            return self.encoder(x) if batch_first else self.encoder(x.transpose(0, 1)).transpose(0, 1)

    assert_matches_loop(Whole().train(training), squared, *data(4, 5, 8))


class Recurrent(nn.Module):
    def __init__(self, kind, batch_first):
        super().__init__()
        self.first = batch_first
        self.cells = kind(3, 4, 2, batch_first=batch_first)

    def forward(self, inputs):
        outputs, _ = self.cells(inputs if self.first else inputs.transpose(0, 1))
        return outputs[:, -1] if self.first else outputs[-1]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_by_the_fallback_for_one_layer(kind, batch_first):
    assert_matches_loop(Recurrent(kind, batch_first), squared, *data(5, 4, 3))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv3d(2, 3, 2), (2, 3, 3, 3)),
        (nn.ConvTranspose2d(2, 3, 2), (2, 3, 3)),
        (nn.PReLU(), (4,)),
        (nn.Bilinear(4, 4, 3), None),
        (Scale(4, 0), (4,)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    ],
)
def test_other_layers_by_the_fallback_for_one_layer(layer, shape):
    if shape is None:
        layer, shape = TwoInputs(layer), (4,)
    assert_matches_loop(nn.Sequential(layer, nn.Tanh(), nn.Flatten()), squared, *data(4, *shape))


class TwoInputs(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return self.layer(inputs, inputs.square())
