"""The version of lbrx, at the bottom layer so that every module can name it."""

VERSION = "0.1.0"
