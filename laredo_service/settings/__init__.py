"""The loader of all programs' HOCON configuration, checked by pydantic.

A program declares its schema with :class:`Section` and the value types, and
calls :func:`load`::

    class Http(settings.Section):
        host: str = "0.0.0.0"
        port: int = 8081

    config = settings.load(path, env_prefix="LAREDO_", sets=("http.port=9000",), schema=Root)
"""

from laredo_service.settings.loading import load
from laredo_service.settings.tree import Path, Problem, SettingsError, WrongAt, path_text
from laredo_service.settings.values import Duration, SchemaName, Secret, Section, Size

__all__ = [
    "Duration",
    "Path",
    "Problem",
    "SchemaName",
    "Secret",
    "Section",
    "SettingsError",
    "Size",
    "WrongAt",
    "load",
    "path_text",
]
