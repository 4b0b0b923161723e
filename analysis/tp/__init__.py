"""Tensor parallelism: what a split over p ranks costs and saves."""
