"""Benchmarks: speed beside bare PyTorch loops, methods beside FedAvg, and other libraries.

What is compared takes turns, so that a machine that is slow for a while is slow for all.
"""
