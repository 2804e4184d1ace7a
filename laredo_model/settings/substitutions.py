"""The size of a configuration after its substitutions, computed before they are made.

Thirty lines that each substitute the one before them twice have 2^30 values; pyhocon would copy
until it is killed.
"""

from typing import Any

from pyhocon import ConfigTree
from pyhocon.config_tree import ConfigSubstitution, ConfigValues
from pyhocon.exceptions import ConfigException


def expanded_size(tree: ConfigTree) -> int:
    """An upper bound of the values and characters that ``tree`` has once it is substituted.

    Of a substituted key below another substitution the whole of that one is counted.
    """
    return _Sizes(tree).of(tree)


class _Sizes:
    def __init__(self, tree: ConfigTree) -> None:
        self._tree = tree
        self._known: dict[str, int] = {}

    def of(self, value: Any) -> int:
        """An upper bound of the values and characters of this value."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, ConfigSubstitution):
            return self._of_variable(value.variable)
        if isinstance(value, ConfigValues):
            # The value that an earlier line gave the same key, which each of them may substitute.
            before = self.of(value.overridden_value) * max(1, len(value.get_substitutions()))
            return 1 + before + sum(map(self.of, value.tokens))
        inner: Any = ()
        if isinstance(value, dict):
            inner = value.values()
        elif isinstance(value, list):
            inner = value
        return 1 + sum(map(self.of, inner))

    def _of_variable(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = 1  # within a cycle, which resolving it will name
            self._known[name] = 1 + self.of(self._nearest(name))
        return self._known[name]

    def _nearest(self, name: str) -> Any:
        """The value at ``name``, or at the nearest path above it."""
        while name:
            try:
                return self._tree.get(name)
            except ConfigException:
                name = name.rpartition(".")[0]
        return None
