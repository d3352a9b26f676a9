"""Does a judge favour its own texts at equal quality? `analysis.external.preference` says how."""

import sys

from analysis.external.preference import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
