"""`python -m benchmarks`: every benchmark in turn, each printing its table."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = {"__init__.py", "__main__.py", "plain_drafter.py", "injected_faults.py", "worked_examples.py", "live_fault.py"}


def main() -> None:
    failed = []
    for path in sorted(HERE.glob("*.py")):
        if path.name not in LIBRARIES:
            print(f"\n=== {path.stem}: {' '.join(path.read_text().split(chr(10), 1)[0].strip(chr(34)).split())}", flush=True)
            if subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}"], cwd=HERE.parent, check=False).returncode:
                failed.append(path.stem)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
