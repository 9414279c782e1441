"""What the paper prints, with the place: the only numbers on the page that are not ours."""

DELTA = 1e-5
RHO = 0.78125
BATCHES = 100

# Section V-A, figure "Privacy parameter ε v.s. epoch": σ = 6, q = .01, 400 epochs.
EPSILON_AT_400 = {"zCDP(RF)": 21.5, "strong composition": 34.3, "zCDP(RS)": 2.37, "moments": 1.67}

# Section IV-B, figure "α-Rényi divergence under sampling": q = .01, σ = 4.
CHANGING_POINT = 147

# Table "decay rate values for different training times" of the appendix.
EPOCHS_OF_DECAYS = (30, 40, 50, 60, 70, 80, 90, 100)
DECAYS = {
    "time": (0.076, 0.0441, 0.0281, 0.019, 0.0132, 0.0093, 0.0067, 0.0048),
    "step": (0.5459, 0.7008, 0.7922, 0.851, 0.891, 0.919, 0.94, 0.956),
    "exponential": (0.0442, 0.0282, 0.0193, 0.0138, 0.0101, 0.0075, 0.0056, 0.0041),
    "polynomial": (6.2077, 3.5277, 2.1948, 1.4317, 0.9549, 0.6382, 0.4167, 0.1626),
}

# Table "Budget Allocation Schedules under Fixed Budget": epochs, (training, testing) accuracy, the same without privacy,
# and with uniform noise for the same number of epochs.
SCHEDULES = {
    "uniform": {"epochs": 100, "private": (0.918, 0.919), "non-private": (0.978, 0.970), "uniform": None},
    "time": {"epochs": 38, "private": (0.934, 0.931), "non-private": (0.959, 0.957), "uniform": (0.922, 0.925)},
    "step": {"epochs": 31, "private": (0.928, 0.929), "non-private": (0.955, 0.954), "uniform": (0.921, 0.925)},
    "exponential": {"epochs": 71, "private": (0.934, 0.929), "non-private": (0.971, 0.965), "uniform": (0.922, 0.925)},
    "polynomial": {"epochs": 44, "private": (0.930, 0.932), "non-private": (0.963, 0.959), "uniform": (0.925, 0.929)},
    "validation": {"epochs": 64, "private": (0.930, 0.930), "non-private": (0.97, 0.964), "uniform": (0.924, 0.926)},
}
# The same section: σ of the validation-based schedule, and for how many epochs. The last step is not printed; five epochs
# at .7 · 4.9 are what makes 64.
VALIDATION_SIGMAS = ((10.0, 29), (7.0, 20), (4.9, 10), (3.43, 5))

# Table "Examples of batching": an epoch over 0…9 in batches of one.
BATCHES_OF_ONE = {
    "tf.train.shuffle_batch": "[2],[6],[8],[0],[5],[7],[1],[4],[9],[3]",
    "tf.estimator.inputs.numpy_input_fn": "[5],[1],[4],[9],[8],[3],[7],[2],[6],[0]",
    "random sampling with prob=0.1": "[2],[1 7],[],[4 5],[],[7],[5 7 9],[],[1],[1 3 7]",
}

# Section "Results on other datasets": points of accuracy over uniform noise, and share of the gap to non-private training.
CANCER = {
    "exponential": {"points": "about 3", "share": "70 %"},
    "validation": {"points": "about 1.8"},
}
CIFAR = {
    "exponential": {"points": "2", "share": "12 %"},
    "validation": {"points": "4", "share": "19 %"},
}
