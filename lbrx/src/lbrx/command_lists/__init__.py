"""Plans as data: command lists, the builder that families describe them to, argument records."""
