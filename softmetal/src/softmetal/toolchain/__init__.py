"""Shared by the compiler and the CPU executor: clang, the host's processor, the disk cache."""
