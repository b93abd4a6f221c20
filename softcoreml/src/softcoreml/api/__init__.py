"""Core ML's classes under PyObjC's names. Each method names the selector that it stands for."""
