"""Tables through noisy marginals and a graphical model.

What belongs in this package, in the order in which a table passes through it. What does not: text, images or graphs.

| modules | what they do |
| --- | --- |
| `domain`, `binning`, `scales` | the public cells of the columns, and values to cells and back |
| `attributes`, `derivation` | moments by day, weekday, hour and gap |
| `workload`, `cost` | which combinations of columns matter; what a run takes in seconds and bytes |
| `aim`, `mwem`, `mst`, `privbayes`, `independent`, on `marginals`, `rounds` | the mechanisms, which alone see data |
| `learning` | their first part where values are not declared |
| `counting`, on `blocks`; `sql_counting`, `coding` | exact counts, in the process or by a SQL engine |
| `drawing`, `noise` | what they draw: paid, and durable before it is used |
| `measurements` | the durable record of what a mechanism has released; from here on all is post-processing |
| `compression`, `smoothing`, `resolution` | fine cells put together by their noisy counts |
| `missing` | columns with hardly any usable value, by their noisy counts |
| `junction`, `propagation`, `estimation` | exact inference on junction trees, and the model that fits the counts |
| `model` | the fitted model on disk, and what the audit asks of it |
| `constraints`, `conditioning` | rules that every row keeps, and the model under them |
| `sampling`, `shapes`, `placing`, `restore` | rows, values inside of cells, the source's schema given back |
"""
