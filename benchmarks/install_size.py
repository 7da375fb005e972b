"""What `pip install kerasdist` brings: megabytes by package, and what using it imports.

    python benchmarks/install_size.py                 # kerasdist alone
    python benchmarks/install_size.py --extra tfds    # with an extra

Makes a new virtual environment with the Python that runs it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Runs in the new environment. `import kerasdist` alone, then its first function.
ASK = """
import importlib.metadata, json, pathlib, sys
sizes = {}
for found in importlib.metadata.distributions():
    files = [pathlib.Path(found.locate_file(file)) for file in found.files or []]
    sizes[found.name] = sum(file.stat().st_size for file in files if file.is_file())
import kerasdist
first = sorted({name.partition(".")[0] for name in sys.modules})
kerasdist.fit
owners = importlib.metadata.packages_distributions()
imported = {name.partition(".")[0] for name in sys.modules}
used = sorted({owner for name in imported for owner in owners.get(name, [])})
at_once = {owner for name in first for owner in owners.get(name, [])}
at_once -= {"kerasdist", "setuptools"}  # Python itself loads a part of setuptools.
print(json.dumps({"sizes": sizes, "used": used, "first": sorted(at_once)}))
"""


def measure(extra):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
        subprocess.run([python, "-m", "pip", "install", "--quiet", wanted], check=True)
        done = subprocess.run(
            [python, "-c", ASK], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", default="")
    found = measure(parser.parse_args().extra)
    sizes = {n: s / 1e6 for n, s in found["sizes"].items() if n not in ("pip", "setuptools")}
    print(f"{len(sizes)} packages, {sum(sizes.values()):,.0f} MB")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:12]:
        print(f"{size:8,.1f} MB  {name}{'' if name in found['used'] else '  (not imported)'}")
    print(f"`import kerasdist` imports {', '.join(found['first']) or 'no other package'}")


if __name__ == "__main__":
    main()
