"""What the commands share at a terminal: their parsers, errors, bars, conversations, completion."""
