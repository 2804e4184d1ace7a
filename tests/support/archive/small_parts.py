"""Runs a console script with multipart uploads of small parts, so that small objects have some.

python -m tests.support.archive.small_parts SCRIPT ARGUMENT...
"""

import runpy
import sys

from laredo_archive.storage.s3 import upload

PART_BYTES = 4000

if __name__ == "__main__":
    upload.PART_BYTES = PART_BYTES
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
