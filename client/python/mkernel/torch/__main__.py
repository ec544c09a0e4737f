"""python -m mkernel.torch build [--force]: compiles the extension in C++ (mkernel.torch.build())."""

import argparse
import sys

from mkernel.errors import Error
from mkernel.torch import build


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mkernel.torch")
    commands = parser.add_subparsers(dest="command", required=True)
    of_build = commands.add_parser("build", help="compile the extension in C++ against the PyTorch that is installed")
    of_build.add_argument("--force", action="store_true", help="also where a build is there")
    arguments = parser.parse_args()
    try:
        print(build(force=arguments.force))
    except (Error, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
