"""Tables through noisy marginals and a graphical model, in the order in which a table passes through the modules.

| modules | what they do |
| --- | --- |
| `domain`, `binning`, `scales` | the public cells of the columns, and values to cells and back |
| `attributes`, `derivation` | moments by day, weekday, hour and gap |
| `workload`, `cost` | which combinations of columns matter; what a run takes in seconds and bytes |
| `aim`, `jam`, `mwem`, `rap`, `gem` | the mechanisms that choose from a workload |
| `appgm`, `grem`, `mst`, `privsyn`, `mrf`, `privbayes`, `histogram`, `independent` | the other mechanisms |
| `marginals`, `rounds` | what mechanisms have in common |
| `learning` | the first part of a mechanism where values are not declared |
| `counting`, on `blocks`; `sql_counting`, `coding` | exact counts, in the process or by a SQL engine |
| `drawing`, `noise` | a mechanism's draws: paid, and durable before they are used |
| `public_rows`, `public_prior` | a declared public table: its counts, and how far an estimate believes them |
| `measurements` | the durable record of what a mechanism has released; all that follows is post-processing |
| `compression`, `smoothing`, `resolution` | fine cells merged by their noisy counts |
| `missing` | columns with hardly any usable value, by their noisy counts |
| `residuals` | marginals in parts that are measured once each, and the best spread of a budget over them |
| `reconstruction` | what all pairs' noisy residuals have in common |
| `mixtures` | mixtures of product distributions, fitted by gradients |
| `junction`, `propagation`, `estimation` | exact inference on junction trees, and the model that fits the counts |
| `local_consistency` | tables of pairs that agree in their columns, where no junction tree fits |
| `gum` | a table that has the noisy counts, in place of a fitted model |
| `model` | the fitted model on disk, and the audit's queries |
| `constraints`, `conditioning` | rules that every row keeps, and the model under them |
| `sampling`, `shapes`, `placing`, `restore` | rows, values inside of cells, the source's schema restored |
"""
