"""The first example of TORCH.md, as printed, in a fresh folder with the commands around it."""
import os
import pathlib
import sys
import unittest

import readme_examples
from torch_test import PACKAGE, PATIENCE, TorchTest, main

TORCH_MD = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "TORCH.md"


@unittest.skipIf(readme_examples.can_run(), f"no mount namespace: {readme_examples.can_run()}")
class Readme(TorchTest):
    def test_first_example(self):
        programs = [os.environ["MKERNEL_BIN"], pathlib.Path(sys.executable).parent]  # of torchrun, too
        readme_examples.run(self, TORCH_MD, self.folder, programs, 20 * PATIENCE, PYTHONPATH=PACKAGE)


if __name__ == "__main__":
    main()
