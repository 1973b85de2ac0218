"""What torch.compile generates: harvested without a GPU, written down as experiments."""
