"""Makers of hostile files."""
