"""The architecture in a cubin's header, of what each assembler of the installed Triton writes."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from aotpack.elf import cuda_architecture


def assemblers() -> list[Path]:
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return []
    return sorted((Path(spec.origin).parent / "backends" / "nvidia" / "bin").glob("ptxas*"))


def assemble(tool: Path, arch: str, folder: Path) -> bytes:
    (folder / "k.ptx").write_text(
        f".version {'8.7' if int(arch.rstrip('a')) <= 101 else '8.8'}\n.target sm_{arch}\n.address_size 64\n"
        ".visible .entry k() { ret; }\n"
    )
    command = [str(tool), f"--gpu-name=sm_{arch}", "k.ptx", "-o", "k.cubin"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "k.cubin").read_bytes()


@pytest.mark.parametrize("tool", assemblers(), ids=lambda tool: tool.name)
@pytest.mark.parametrize("arch", ["80", "86", "89", "90", "90a", "100", "100a", "103a", "120a"])
def test_the_header_says_what_was_assembled_for(tool: Path, arch: str, tmp_path: Path) -> None:
    listed = subprocess.run([tool, "--help"], capture_output=True, text=True, check=True).stdout
    if f"'sm_{arch}'" not in listed:
        pytest.skip(f"{tool.name} does not assemble for sm_{arch}")
    try:
        cubin = assemble(tool, arch, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{tool.name} does not know this PTX: {error.stderr.decode()[:80]}")
    assert cuda_architecture(cubin) == int(re.sub("[af]", "", arch))
    assert cuda_architecture(cubin + b"more") == int(re.sub("[af]", "", arch))
    for length in (0, 10, 63, 64, 100, len(cubin) - 1):
        assert cuda_architecture(cubin[:length]) is None


def test_a_library_of_the_host_is_no_cubin() -> None:
    assert cuda_architecture(Path("/proc/self/exe").read_bytes()) is None
    assert cuda_architecture(b"\x7fELF" + bytes(200)) is None
