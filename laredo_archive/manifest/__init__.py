"""manifest.json: its model, its parser, and the rules of the next version."""
