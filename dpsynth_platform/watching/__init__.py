"""Monitoring of a deployment: metrics for Prometheus, and health checks.

What belongs here: numbers and checks for an operator's monitoring, and their server. What does not: budgets of single
owners, counts of rows, names of people, and all else that depends on the data: monitoring keeps and displays it for
years.
"""
