"""How much a configuration's substitutions come to, told before they are made.

Of thirty lines each may say twice what the one before says: pyhocon would copy until it is killed.
"""

from typing import Any

from pyhocon import ConfigTree
from pyhocon.config_tree import ConfigSubstitution, ConfigValues
from pyhocon.exceptions import ConfigException


def expanded_size(tree: ConfigTree) -> int:
    """How many values, and characters of text, ``tree`` has when all is substituted.

    At most: of a substituted key below another substitution the whole of that one is counted.
    """
    return _Sizes(tree).of(tree)


class _Sizes:
    def __init__(self, tree: ConfigTree) -> None:
        self._tree = tree
        self._known: dict[str, int] = {}

    def of(self, value: Any) -> int:
        """How many values and characters this value has."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, ConfigSubstitution):
            return self._of_variable(value.variable)
        if isinstance(value, ConfigValues):
            # What the line before gave the same key, which each of them may substitute.
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
        """What stands at ``name``, or at the nearest path above it."""
        while name:
            try:
                return self._tree.get(name)
            except ConfigException:
                name = name.rpartition(".")[0]
        return None
