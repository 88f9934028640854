"""DP training of neural generators: sealed plans, Poisson samplers, clipping, noise, the optimizer and the loop.

What belongs here: everything between a bounded set of training examples and a trained, differentially private model.
What does not: texts and tokens (`synth.text`), what training costs (`privacy`), the ledger. One object, the
`plan.TrainingPlan`, holds all numbers that the guarantee rests on, and every part here reads them from it.
"""
