"""What torch.compile generates, as workloads of their own."""
