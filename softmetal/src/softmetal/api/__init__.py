"""The Metal objects under PyObjC's names and conventions."""
