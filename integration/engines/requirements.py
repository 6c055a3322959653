"""Prints what a wheel of vLLM requires, without the builds of torch that it names and what only building needs."""

import sys
import zipfile
from email import message_from_bytes

NOT_HERE = ("torch==", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "setuptools==")


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        required = message_from_bytes(wheel.read(name)).get_all("Requires-Dist", [])
    for requirement in required:
        if "extra ==" not in requirement and not requirement.startswith(NOT_HERE):
            print(requirement)


main()
