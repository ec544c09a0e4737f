"""The first example of client/python/README.md, literally, on two ranks."""
import pathlib
import re
import sys
import unittest

from client_test import PACKAGE, PATIENCE, ClientTest

README = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "README.md"


class Readme(ClientTest):
    def test_first_example(self):
        daemon = self.start_nodes(1)[0]
        example = self.folder / "example.py"
        example.write_text(re.search(r"```python\n(.*?)```", README.read_text(), re.S)[1])
        ranks = [self.spawn(sys.executable, "-B", example, RANK=rank, WORLD_SIZE=2, SOCKET=daemon.socket, PYTHONPATH=PACKAGE)
                 for rank in range(2)]
        for rank, process in enumerate(ranks):
            status, out, err = self.finish(process, 4 * PATIENCE)
            self.assertEqual(status, 0, out + err)
            first, second = out.splitlines()
            # fp16 results of about 20: an element is rounded by at most 2^-11 of the largest, which is below 128.
            self.assertLess(float(re.fullmatch(rf"rank {rank}: largest difference ([0-9.]+)", first)[1]), 0.07)
            self.assertEqual(second, f"rank {rank}: received {1 - rank} from rank {1 - rank}")


if __name__ == "__main__":
    unittest.main()
