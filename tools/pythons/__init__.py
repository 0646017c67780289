"""The tests under each Python that marlaas promises and this machine has, without PyTorch."""
