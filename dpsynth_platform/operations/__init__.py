"""Running lines: runs, rehearsals, closing runs, learning a bound. No other library layer knows Dagster."""
