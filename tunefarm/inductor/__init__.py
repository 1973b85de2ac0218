"""What torch.compile generates, harvested without a GPU and written down as experiments."""
