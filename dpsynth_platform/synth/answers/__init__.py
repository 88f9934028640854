"""Answers to queries, with intervals, in place of rows (`kind: answers`).

| modules | what they do |
| --- | --- |
| `layout` | the tables of numbers that a plan measures for its queries, and their parts of the budget |
| `strategies` | which sums of cells are measured for prefixes, so that all of them are precise (matrix mechanism) |
| `sharing` | which queries measure their counts together, by residuals |
| `products`, `ranges` | which counts with ranges are measured together, and how: by Kronecker products |
| `measuring` | the exact tables; sensitive |
| `generator` | the method `answers`: plan, mechanism, and the table of answers |
| `estimates` | answers, intervals and standard errors from the noisy tables; post-processing |
"""
