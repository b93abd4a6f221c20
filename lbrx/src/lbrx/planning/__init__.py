"""From a graph to the steps of a command list: fusion and joins."""
