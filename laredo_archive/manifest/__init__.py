"""manifest.json: what an archive consists of, and what may follow what."""
