"""Reading models: protobuf, packages, weight files and MIL text. Files are never trusted."""
