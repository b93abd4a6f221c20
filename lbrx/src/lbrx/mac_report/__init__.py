"""One file about a Mac: does lbrx work there, what does Metal's compiler say, how fast is it.

`python -m lbrx.mac_report` runs the steps and writes the file, `python -m lbrx.mac_report FILE`
shows what to mend first. Every step is a process of its own, so none can take the others with it.
"""
