"""``laredo-snapshotter check``: can this configuration work?"""
