"""The option that changes what codes mean, the same for every verb that judges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

CatalogueFiles = Annotated[
    list[Path] | None,
    Parameter(
        name="--catalogue",
        env_var="OUTLAST_CATALOGUE",
        help="CSV file whose rows override a built-in catalogue, told by its columns; may be given several "
        "times, in the environment separated by colons.",
    ),
]
