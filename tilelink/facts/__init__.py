"""Facts about integers that hold in every launch: regions bounded by entries of index tensors; promises are axioms."""
