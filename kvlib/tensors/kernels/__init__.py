"""Kernels that read keys and values where they lie: one for the CPU, one for CUDA."""
