"""Apple's Neural Engine through Core ML: programs are written with coremltools and run by Core ML,
which is Apple's framework on a Mac and softcoreml elsewhere."""
