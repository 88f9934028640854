"""DP training of neural generators: sealed plans, Poisson samplers, clipping, noise, the optimizer and the loop.

What belongs here: everything between a bounded set of training examples and a trained, differentially private model.
What does not: texts and tokens (`synth.text`), cost of training (`privacy`), the ledger. All parts read the numbers
that the guarantee depends on from one `plan.TrainingPlan`.
"""
