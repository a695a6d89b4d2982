"""Estimates against what others measured: kernels and whole deployments."""
