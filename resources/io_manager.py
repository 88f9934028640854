"""The IO manager that refuses.

Dagster's default IO manager pickles whatever an asset returns, in clear, under the Dagster home. Sensitive data must
never take that way, so this one is installed in its place: steps store explicitly, through `storage`.
"""

from typing import Any, NoReturn

import dagster as dg

from dpsynth_platform.foundation.errors import ConfigurationError


class RefusingIOManager(dg.ConfigurableIOManager):
    """Raises for every value that an asset returns or asks for."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> NoReturn:
        """Refuses to store a value."""
        raise ConfigurationError(
            f"{context.step_key} returned a value of type {type(obj).__name__}; steps store explicitly and return a "
            "MaterializeResult or nothing (annotated '-> None')"
        )

    def load_input(self, context: dg.InputContext) -> NoReturn:
        """Refuses to load a value."""
        raise ConfigurationError("steps read what other steps stored through the storage resource, not as arguments")
