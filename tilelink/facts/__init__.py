"""What is true of integers in every launch: of regions that entries of index tensors bound, with promises as axioms."""
