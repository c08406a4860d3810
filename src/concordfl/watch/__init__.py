"""Following runs in progress, from the folders that other processes write."""
