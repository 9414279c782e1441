"""The published directory: written from a run, read and verified without PyTorch."""
