"""Makes `python -m kerasdist` the same command as `kerasdist`."""

import sys

from kerasdist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
