"""What the compiler and the CPU executor both need: clang, the host's processor, the disk cache."""
