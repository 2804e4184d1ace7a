"""Secrets that a configuration takes from a file: ``token_file`` in place of ``token``."""

from pathlib import Path
from typing import Any

from laredo_model.settings.values import expanded


def with_secret(data: Any, key: str) -> Any:
    """A section's values before they are checked, with ``key`` read from the file ``<key>_file``.

    White space around it isn't part of it. The file is read once, as the configuration is loaded.

    :raises ValueError: if both are given, or the file can't be read or is empty.
    """
    name = f"{key}_file"
    if not isinstance(data, dict) or data.get(name) is None:
        return data
    if data.get(key) is not None:
        raise ValueError(f"{key} and {name} are both given; give one of them")
    path = expanded(Path(str(data[name])))
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{name} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} {path} isn't text in UTF-8") from None
    if not secret:
        raise ValueError(f"{name} {path} is empty")
    return {**data, key: secret}
