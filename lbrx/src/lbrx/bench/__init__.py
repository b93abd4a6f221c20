"""`lbrx bench`: speed beside ceilings and peers that are measured in the same run.

`kernel_cases` says what is measured, `timing` how, `ceilings` what the machine allows, `peers` how
other libraries compute the same, and `suites` runs it. `report` has the results as JSON, `page` as
HTML and `markdown` as Markdown; `comparison` finds what became slower since an earlier report.
"""
